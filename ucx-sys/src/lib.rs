//! The part of UCX's C interface that `pgas` uses, under UCX's own names.
//!
//! Everything here is written by hand against the headers of UCX 1.12, the oldest release supported.
//! Newer releases only add fields behind the ones that are here and values to the enumerations, and a
//! structure says with its `field_mask` which fields are set, so one set of declarations serves all of
//! them. `tests/abi.rs` lets the C compiler compare every structure, constant, function and callback with
//! the headers that are installed.
//!
//! - C enumerations are integers here, never Rust enums: a newer UCX may hand back a value that this crate
//!   has not heard of. [`ucs_status_t`] is a newtype over `i8` for the same reason.
//! - `ucp_init` exists only as an inline function of the C header: call [`ucp_init_version`] with
//!   [`UCP_API_MAJOR`] and [`UCP_API_MINOR`].
//! - The macros for a `ucs_status_ptr_t` are the functions [`UCS_PTR_IS_ERR`], [`UCS_PTR_IS_PTR`],
//!   [`UCS_PTR_STATUS`] and [`UCS_STATUS_PTR`].
//! - Call [`check`] before anything else: it refuses a library that is too old, and two halves of UCX that
//!   come from different installations.
//!
//! ```
//! ucx_sys::check().expect("a usable UCX");
//! let (major, minor, _release) = ucx_sys::version();
//! assert!((major, minor) >= (1, 12));
//! ```
#![allow(
    non_camel_case_types,
    non_snake_case,
    reason = "UCX's names are kept as they are, so that its documentation can be searched for them"
)]
#![allow(
    unsafe_code,
    reason = "declares and calls C functions: that is all this crate is for"
)]

/// Defines each name as a constant of the type it is listed under.
///
/// `constants.rs` is nothing but a call of this macro: `tests/abi.rs` includes the same file with a macro
/// of its own that lists the names, so that no constant can be left out of the comparison.
macro_rules! constants {
    ($($type:ty { $($name:ident = $value:expr;)* })*) => {
        $($(pub const $name: $type = $value;)*)*
    };
}

/// `constants.rs`, with the types it names.
mod constants {
    use crate::types::*;
    use std::ffi::c_uint;

    include!("constants.rs");
}
mod functions;
mod identity;
mod status;
mod types;

pub use constants::*;
pub use functions::*;
pub use identity::{MINIMUM_VERSION, check, library_paths, version};
pub use status::*;
pub use types::*;
