//! Launcher of pgas programs.
#![warn(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod auth;
pub mod client;
pub mod codec;
mod error;
pub mod wire;

pub use auth::Secret;
pub use client::{Control, ControlReader, ControlWriter};
pub use error::{Error, ErrorKind, Result};
