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

pub mod agent;
pub mod allocation;
mod auth;
mod bind;
pub mod client;
pub mod codec;
mod connection;
mod control;
mod door;
mod error;
mod exec;
mod fleet;
#[cfg(test)]
mod fuzz;
pub mod hosts;
mod input;
mod job;
pub mod keeper;
pub mod limits;
mod network;
pub mod outcome;
mod output;
mod plan;
mod poll;
mod proc;
mod process;
mod rank;
mod run;
mod segments;
mod server;
pub mod store;
mod watch;
pub mod wire;

pub use auth::Secret;
pub use bind::Bind;
pub use client::{Control, ControlReader, ControlWriter};
pub use control::JobControl;
pub use error::{Error, ErrorKind, Result};
pub use hosts::{Host, Map, Place};
pub use input::Stdin;
pub use job::{Agents, DEFAULT_ENVIRONMENT, GRACE, Job, SILENCE, Seat};
pub use limits::OpenFiles;
pub use outcome::{Cause, Failure, Outcome};
pub use output::{LineFn, MAX_LINE, Output, Stream};
