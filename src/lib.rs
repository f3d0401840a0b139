//! Distributed arrays over UCX. Any rank of a job reads and writes any element of a
//! [`GlobalArray`] that is spread over all of them, as if it were its own; nobody is asked at the
//! other side.
//!
//! ```no_run
//! use pgas::{GlobalArray, World};
//!
//! fn main() -> pgas::Result<()> {
//!     World::run(|world| {
//!         let squares = GlobalArray::<u64>::from_fn(world, 1_000_000, |i| (i * i) as u64)?;
//!         let anywhere = squares.get(999_999)?; // lives on the last rank
//!         squares.put(0, anywhere)?; // lives on rank 0
//!         world.barrier()?; // now all ranks see it
//!         println!("rank {}: {}", world.rank(), squares.get(0)?);
//!         Ok(())
//!     })
//! }
//! ```
//! ```text
//! $ ucxrun -n 4 ./target/release/squares
//! ```
//!
//! # The way of a `get`
//! ```text
//! GlobalArray::get(index)      array/mod.rs   which rank: one multiplication, no division
//!   ├─ mapped (own, same node)                a load through the pointer: done
//!   └─ Window::get(rank, offset)  window.rs   the rank's key, unpacked at first use
//!        └─ RemoteKey::get(offset) ucx/rkey.rs  bounds and type checked, posted, waited for
//!             └─ ucp_get_nbx          ucx-sys
//! ```
//!
//! # Where to look
//! [`World`] has ranks and collectives, [`GlobalArray`] the arrays, [`testing`] runs tests on
//! several ranks, [`ucx`] is the safe layer over UCX for programs that exchange keys themselves.

#![warn(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::print_stdout
)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

mod array;
mod atomic;
#[cfg(doctest)]
mod book;
mod cores;
mod dist;
mod element;
mod error;
#[cfg(test)]
mod fuzz;
mod operator;
mod span;
mod sync;
pub mod testing;
mod threads;
pub mod ucx;
mod wait;
mod window;
mod world;

#[cfg(feature = "zarr")]
pub use array::Zarr;
pub use array::{
    ArrayIndex, AtomicsView, Boundary, Builder, Exchange, GlobalArray, Iter, LocalView, Numpy,
    Order, Owned, ReadView, Real, Scope, Transfer, Updates,
};
pub use atomic::{AtomicBits, AtomicElement, AtomicNumber, NativeAtomic};
pub use dist::Dist;
pub use element::Element;
pub use error::{Error, ErrorKind, Result};
pub use operator::{BitOp, Combine, Number, Op, Operator};
pub use span::{Section, Span, span};
pub use sync::{Counter, GlobalMutex, GlobalMutexGuard, Signals};
pub use world::{Any, Checks, Envelope, Grid, Ragged, Request, Source, Tag, Team, World};
