//! The safe layer over UCX: one owner type for each UCX object, none of which can be misused
//! into undefined behaviour.
//!
//! | here | UCX | keeps alive |
//! | --- | --- | --- |
//! | [`Context`] | `ucp_context_h` | the library |
//! | [`Worker`] | `ucp_worker_h` | its context |
//! | [`Endpoint`] | `ucp_ep_h` | its worker |
//! | [`MemoryHandle`] | `ucp_mem_h` | its context |
//! | [`RemoteKey`] | `ucp_rkey_h` | its endpoint, and for local keys the memory |
//! | [`SerializedRemoteKey`] | packed rkey | nothing: bytes with a checksum |
//! | [`Request`], [`GetBatch`] | request pointers | their endpoints and their buffer |
//! | [`PutTicket`] | | its endpoint |
//!
//! Most programs never need this module: [`GlobalArray`](crate::GlobalArray) is built on it.
//! It is for programs that move keys between processes by their own means.
//!
//! # Example
//! Two processes; the serialized key and the worker address travel by any channel.
//! ```no_run
//! use pgas::ucx::{Context, MemoryHandle, SerializedRemoteKey, WorkerAddress};
//! # fn send(_: &[u8]) {} fn receive() -> Vec<u8> { vec![] }
//! # fn main() -> pgas::Result<()> {
//! // The owner of the memory:
//! let context = Context::builder().job(42).build()?;
//! let worker = context.worker()?;
//! let memory = MemoryHandle::allocate::<u64>(&context, 1000)?;
//! send(&worker.address()?.to_bytes());
//! send(memory.pack()?.as_bytes());
//!
//! // The process that reads it:
//! let endpoint = worker.connect(&WorkerAddress::from_bytes(&receive())?)?;
//! let key = endpoint.unpack(&SerializedRemoteKey::from_bytes(&receive())?)?;
//! let tenth: u64 = key.get(10)?;
//! # Ok(()) }
//! ```

mod amo;
mod batch;
mod context;
mod endpoint;
mod flush;
mod memory;
mod message;
mod request;
mod rkey;
mod seal;
mod serialized;
mod status;
mod unflushed;
mod worker;

pub use batch::GetBatch;
pub use context::{Builder, Context, version};
pub use endpoint::Endpoint;
pub use flush::PutTicket;
pub use memory::MemoryHandle;
pub(crate) use message::{Expected, Message, Tags};
pub use request::Request;
pub use rkey::RemoteKey;
pub use serialized::SerializedRemoteKey;
pub use status::Status;
pub(crate) use worker::Pump;
pub use worker::{Worker, WorkerAddress};

#[cfg(test)]
mod tests;
