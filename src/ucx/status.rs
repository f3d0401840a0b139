//! What a UCX call returned: a number with a name, and the one way to turn it into an error.

#![expect(unsafe_code, reason = "asks UCX for the text of a status")]

use crate::error::{Error, Result};
use std::ffi::CStr;
use std::fmt;
use ucx_sys::ucs_status_t;

/// A UCX status. A newer UCX may return values this crate has not heard of, so this is not an enum.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(ucs_status_t);

impl Status {
    pub(crate) fn new(status: ucs_status_t) -> Self {
        Self(status)
    }

    /// The number, as in UCX's `ucs_status_t`: 0 is success, 1 in progress, negative an error.
    #[must_use]
    pub fn code(self) -> i8 {
        self.0.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: takes any value, returns a static or thread-local string, never null.
        let text = unsafe { ucx_sys::ucs_status_string(self.0) };
        // SAFETY: see above; NUL-terminated, and copied before any other call.
        let text = unsafe { CStr::from_ptr(text) };
        write!(f, "{}", text.to_string_lossy().to_lowercase())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({}: {self})", self.code())
    }
}

/// The result of the UCX function `call`.
#[inline]
pub(crate) fn check(call: &'static str, status: ucs_status_t) -> Result<()> {
    if status == ucx_sys::UCS_OK {
        Ok(())
    } else {
        Err(Error::ucx(call, Status(status)))
    }
}
