//! `MemoryHandle`: memory that UCX allocated and registered, for peers to read and write.

#![expect(unsafe_code, reason = "calls UCX")]

use super::context::{Context, Retired};
use super::rkey::RemoteKey;
use super::serialized::{SerializedRemoteKey, Shape};
use super::status::check;
use super::worker::Worker;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use ucx_sys as sys;

/// Memory for elements of one type, allocated and registered by UCX, all bytes zero at first.
///
/// Always UCX's own allocation, never a `Vec`: only such memory can be mapped by peers on the
/// same node. No Rust reference to it is ever made; it is read and written through keys.
///
/// Cloning shares it. When the last clone and the last local key are gone it is unmapped, unless
/// a key was packed: then a peer may still use it, so it stays mapped until the context goes.
#[derive(Clone, Debug)]
pub struct MemoryHandle(Arc<Inner>);

/// Invariant: `memory` came from `ucp_mem_map` on `context` and is live until `drop`; `base` is
/// its address, aligned for the element, with at least `shape.bytes()` bytes.
#[derive(Debug)]
struct Inner {
    /// None for zero elements: nothing is mapped.
    memory: Option<NonNull<sys::ucp_mem>>,
    base: *mut u8,
    mapped_len: usize,
    shape: Shape,
    packed: AtomicBool,
    context: Context,
}

// SAFETY: memory handles may be used from any thread; the memory is only accessed by raw pointer.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl MemoryHandle {
    /// Allocates and registers memory for `count` elements. Zero elements need no memory.
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] when the size overflows or UCX cannot allocate it.
    #[doc(alias = "ucp_mem_map")]
    pub fn allocate<T: Element>(context: &Context, count: usize) -> Result<Self> {
        const { assert!(size_of::<T>() > 0, "elements must have a size") };
        // Peers map it at page borders of their own.
        const {
            assert!(
                align_of::<T>() <= 4096,
                "elements must not be aligned beyond a page"
            )
        };
        context.refuse_fork()?;
        let shape = Shape::of::<T>(count)?;
        if count == 0 {
            return Ok(Self(Arc::new(Inner {
                memory: None,
                base: ptr::null_mut(),
                mapped_len: 0,
                shape,
                packed: AtomicBool::new(false),
                context: context.clone(),
            })));
        }
        let params = sys::ucp_mem_map_params_t {
            field_mask: sys::UCP_MEM_MAP_PARAM_FIELD_LENGTH | sys::UCP_MEM_MAP_PARAM_FIELD_FLAGS,
            length: shape.bytes(),
            flags: sys::UCP_MEM_MAP_ALLOCATE,
            ..sys::ucp_mem_map_params_t::ZEROED
        };
        let mut memory = ptr::null_mut();
        // SAFETY: the context is live, params valid, memory written on success.
        let status =
            unsafe { sys::ucp_mem_map(context.as_raw(), &raw const params, &raw mut memory) };
        check("ucp_mem_map", status).map_err(|error| {
            let mut no_room = Error::new(
                ErrorKind::NoRoom,
                format!("{} bytes of shared memory: {error}", shape.bytes()),
            );
            if let Some(status) = error.status() {
                no_room = no_room.with_status(status);
            }
            no_room
        })?;
        let memory = NonNull::new(memory)
            .ok_or_else(|| Error::new(ErrorKind::Ucx, "ucp_mem_map: no memory handle"))?;
        let mut inner = Inner {
            memory: Some(memory),
            base: ptr::null_mut(),
            mapped_len: 0,
            shape,
            packed: AtomicBool::new(false),
            context: context.clone(),
        };
        let mut attr = sys::ucp_mem_attr_t {
            field_mask: sys::UCP_MEM_ATTR_FIELD_ADDRESS | sys::UCP_MEM_ATTR_FIELD_LENGTH,
            ..sys::ucp_mem_attr_t::ZEROED
        };
        // SAFETY: the handle is live.
        let status = unsafe { sys::ucp_mem_query(memory.as_ptr(), &raw mut attr) };
        check("ucp_mem_query", status)?;
        inner.base = attr.address.cast();
        inner.mapped_len = attr.length;
        if attr.length < shape.bytes() || !inner.base.cast::<T>().is_aligned() {
            return Err(Error::new(
                ErrorKind::NoRoom,
                format!(
                    "asked UCX for {} bytes and got {} at {:p}",
                    shape.bytes(),
                    attr.length,
                    inner.base
                ),
            ));
        }
        // SAFETY: freshly mapped, so long, and nobody else knows of it. Where UCX falls back to
        // the heap its memory is not zero.
        unsafe { ptr::write_bytes(inner.base, 0, shape.bytes()) };
        Ok(Self(Arc::new(inner)))
    }

    /// The key to this memory, as bytes to send to a peer.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`].
    #[doc(alias = "ucp_rkey_pack")]
    pub fn pack(&self) -> Result<SerializedRemoteKey> {
        let key = self.pack_for_here()?;
        self.set_packed();
        Ok(key)
    }

    /// Notes that a key may have left the process.
    pub(super) fn set_packed(&self) {
        self.0.packed.store(true, Ordering::Relaxed);
    }

    /// As [`MemoryHandle::pack`], for a key that stays in this process and keeps the memory mapped.
    pub(super) fn pack_for_here(&self) -> Result<SerializedRemoteKey> {
        let inner = &*self.0;
        inner.context.refuse_fork()?;
        let mut packed = Vec::new();
        if let Some(memory) = inner.memory {
            let (mut buffer, mut size) = (ptr::null_mut(), 0);
            // SAFETY: context and handle are live; both results are written on success.
            let status = unsafe {
                sys::ucp_rkey_pack(
                    inner.context.as_raw(),
                    memory.as_ptr(),
                    &raw mut buffer,
                    &raw mut size,
                )
            };
            check("ucp_rkey_pack", status)?;
            // SAFETY: UCX returned `size` bytes there, live until released below.
            packed = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), size) }.to_vec();
            // SAFETY: from ucp_rkey_pack, released once.
            unsafe { sys::ucp_rkey_buffer_release(buffer) };
        }
        Ok(SerializedRemoteKey::new(
            &inner.context,
            inner.base.addr() as u64,
            inner.mapped_len as u64,
            &inner.shape,
            &packed,
        ))
    }

    /// A key to this memory in this process, through a loopback endpoint of `worker`. It keeps
    /// the memory mapped.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`].
    pub fn remote_key(&self, worker: &Worker) -> Result<RemoteKey> {
        RemoteKey::from_memory_handle(self, worker)
    }

    /// Bytes that were asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.shape.bytes()
    }

    /// Whether it holds no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that UCX mapped: at least [`MemoryHandle::len`], in whole pages.
    #[must_use]
    pub fn mapped_len(&self) -> usize {
        self.0.mapped_len
    }

    /// Address of the first element; null if there is none. Peers may be writing there: access
    /// it with atomics, or not at all.
    #[must_use]
    #[doc(alias = "ucp_mem_query")]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base
    }

    /// Lets the memory be unmapped as soon as the last clone and local key are gone.
    ///
    /// # Safety
    /// No process will use a key packed from it any more.
    pub unsafe fn forget_packed_keys(&self) {
        self.0.packed.store(false, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        if self.context.is_forked() {
            return; // The parent's.
        }
        if *self.packed.get_mut() {
            self.context.retire(Retired(memory));
        } else {
            // Nothing can be done about a failed unmap; the context's clean-up reports it.
            let _ = self.context.unmap(memory);
        }
    }
}
