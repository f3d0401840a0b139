//! stub
mod dist;
mod element;
mod error;
pub mod ucx;
mod array;
mod wait;
mod window;
mod world;
pub use array::{GlobalArray, LocalView, ReadView};
pub use element::{AtomicElement, Element};
pub use world::{World, Op, Number};
pub use error::{Error, ErrorKind, Result};
