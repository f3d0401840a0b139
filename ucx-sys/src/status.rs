//! The status byte, and the pointer that may be a status.

use std::ffi::c_void;
use std::fmt;

/// What a UCX call returns: 0 is success, 1 is "still going", a negative number is an error.
///
/// A newtype over C's signed byte, so that a status of a later UCX is only a number without a name.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ucs_status_t(pub i8);

macro_rules! statuses {
    ($($name:ident = $value:literal;)*) => {
        $(pub const $name: ucs_status_t = ucs_status_t($value);)*

        impl ucs_status_t {
            /// Every status that has a name here.
            pub const ALL: &[ucs_status_t] = &[$($name),*];

            /// UCX's name of this status, where this crate knows it.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    UCS_OK = 0;
    UCS_INPROGRESS = 1;
    UCS_ERR_NO_MESSAGE = -1;
    UCS_ERR_NO_RESOURCE = -2;
    UCS_ERR_IO_ERROR = -3;
    UCS_ERR_NO_MEMORY = -4;
    UCS_ERR_INVALID_PARAM = -5;
    UCS_ERR_UNREACHABLE = -6;
    UCS_ERR_INVALID_ADDR = -7;
    UCS_ERR_NOT_IMPLEMENTED = -8;
    UCS_ERR_MESSAGE_TRUNCATED = -9;
    UCS_ERR_NO_PROGRESS = -10;
    UCS_ERR_BUFFER_TOO_SMALL = -11;
    UCS_ERR_NO_ELEM = -12;
    UCS_ERR_SOME_CONNECTS_FAILED = -13;
    UCS_ERR_NO_DEVICE = -14;
    UCS_ERR_BUSY = -15;
    UCS_ERR_CANCELED = -16;
    UCS_ERR_SHMEM_SEGMENT = -17;
    UCS_ERR_ALREADY_EXISTS = -18;
    UCS_ERR_OUT_OF_RANGE = -19;
    UCS_ERR_TIMED_OUT = -20;
    UCS_ERR_EXCEEDS_LIMIT = -21;
    UCS_ERR_UNSUPPORTED = -22;
    UCS_ERR_REJECTED = -23;
    UCS_ERR_NOT_CONNECTED = -24;
    UCS_ERR_CONNECTION_RESET = -25;
    UCS_ERR_FIRST_LINK_FAILURE = -40;
    UCS_ERR_LAST_LINK_FAILURE = -59;
    UCS_ERR_FIRST_ENDPOINT_FAILURE = -60;
    UCS_ERR_ENDPOINT_TIMEOUT = -80;
    UCS_ERR_LAST_ENDPOINT_FAILURE = -89;
    UCS_ERR_LAST = -100;
}

impl ucs_status_t {
    /// Whether this is an error: neither success nor "still going". C's `UCS_STATUS_IS_ERR`.
    #[must_use]
    pub const fn is_err(self) -> bool {
        self.0 < 0
    }
}

impl fmt::Debug for ucs_status_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}({})", self.0),
            None => write!(f, "ucs_status_t({})", self.0),
        }
    }
}

/// What an operation that may go on in the background returns: null (done), the address of a request, or
/// an error in the last 100 addresses.
pub type ucs_status_ptr_t = *mut c_void;

/// The lowest address that is an error.
const FIRST_ERROR: usize = (UCS_ERR_LAST.0 as isize).cast_unsigned();

/// Whether `pointer` is an error, which [`UCS_PTR_STATUS`] then tells.
#[inline]
#[must_use]
pub fn UCS_PTR_IS_ERR(pointer: ucs_status_ptr_t) -> bool {
    pointer.addr() >= FIRST_ERROR
}

/// Whether `pointer` is a request: neither null nor an error.
#[inline]
#[must_use]
pub fn UCS_PTR_IS_PTR(pointer: ucs_status_ptr_t) -> bool {
    pointer.addr().wrapping_sub(1) < FIRST_ERROR - 1
}

/// The status that `pointer` stands for: [`UCS_OK`] for null, [`UCS_INPROGRESS`] for a request.
#[inline]
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "an address that is no request is 0 or -100 to -1, which fits"
)]
pub fn UCS_PTR_STATUS(pointer: ucs_status_ptr_t) -> ucs_status_t {
    if UCS_PTR_IS_PTR(pointer) {
        UCS_INPROGRESS
    } else {
        ucs_status_t(pointer.addr().cast_signed() as i8)
    }
}

/// `status` as an operation would return it: null for [`UCS_OK`], otherwise an address that is no memory.
#[inline]
#[must_use]
pub const fn UCS_STATUS_PTR(status: ucs_status_t) -> ucs_status_ptr_t {
    std::ptr::without_provenance_mut((status.0 as isize).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_the_way_through_a_pointer() {
        for number in -100..=0 {
            let status = ucs_status_t(number);
            let pointer = UCS_STATUS_PTR(status);
            assert_eq!(UCS_PTR_STATUS(pointer), status);
            assert_eq!(UCS_PTR_IS_ERR(pointer), number < 0, "{status:?}");
            assert!(!UCS_PTR_IS_PTR(pointer), "{status:?}");
        }
    }

    #[test]
    fn a_request_is_neither_done_nor_an_error() {
        let mut memory = 0_u64;
        let lowest: ucs_status_ptr_t = std::ptr::without_provenance_mut(1);
        let highest: ucs_status_ptr_t = std::ptr::without_provenance_mut(FIRST_ERROR - 1);
        for request in [(&raw mut memory).cast(), lowest, highest] {
            assert!(UCS_PTR_IS_PTR(request));
            assert!(!UCS_PTR_IS_ERR(request));
            assert_eq!(UCS_PTR_STATUS(request), UCS_INPROGRESS);
        }
    }

    #[test]
    fn a_status_shows_its_name_and_number() {
        assert_eq!(format!("{UCS_ERR_NO_MEMORY:?}"), "UCS_ERR_NO_MEMORY(-4)");
        assert_eq!(format!("{:?}", ucs_status_t(-33)), "ucs_status_t(-33)");
        assert!(UCS_ERR_BUSY.is_err() && !UCS_OK.is_err() && !UCS_INPROGRESS.is_err());
    }
}
