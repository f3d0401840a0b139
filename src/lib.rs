//! stub
mod dist;
mod element;
mod error;
pub mod ucx;
mod wait;
pub use element::{AtomicElement, Element};
pub use error::{Error, ErrorKind, Result};
