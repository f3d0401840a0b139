#![doc = include_str!("../README.md")]
#![warn(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::cast_possible_truncation,
        reason = "a panic fails the test"
    )
)]

mod auth;
pub mod client;
pub mod codec;
mod control;
mod error;
mod input;
mod job;
pub mod limits;
pub mod outcome;
mod output;
mod poll;
mod rank;
mod run;
mod server;
pub mod wire;

pub use auth::Secret;
pub use client::{Control, ControlReader, ControlWriter};
pub use control::JobControl;
pub use error::{Error, ErrorKind, Result};
pub use input::Stdin;
pub use job::{DEFAULT_ENVIRONMENT, GRACE, Job};
pub use limits::OpenFiles;
pub use outcome::{Cause, Failure, Outcome};
pub use output::{LineFn, MAX_LINE, Output, Stream};
