//! `RemoteKey`: the right to read and write a peer's memory.
//!
//! This is the seed of the library. A key owns its endpoint, knows the length and the element
//! type of the memory it opens, and checks every access against them: UCX checks nothing.

#![expect(unsafe_code, reason = "calls UCX")]

use super::endpoint::Endpoint;
use super::flush::PutTicket;
use super::memory::MemoryHandle;
use super::request::{Posted, Request};
use super::serialized::{SerializedRemoteKey, Shape};
use super::status::check;
use super::unflushed::{DroppedKey, Elements};
use super::worker::{Worker, host_param};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use ucx_sys as sys;

/// Largest piece of one put: bounds the copy that is made of it.
const PUT_PIECE: usize = 1 << 20;

/// The right to read and write one peer's memory. Offsets are in elements from its start.
///
/// Every access is checked against the length and the element type. Where the peer's memory is
/// mapped into this process it is a load or store; elsewhere it is a UCX operation. Nobody is
/// asked at the other side, except that some transports (tcp) need the owner to progress the
/// worker this key's endpoint leads to.
#[derive(Debug)]
pub struct RemoteKey {
    /// Where the peer's memory is mapped in this process.
    pointer: Option<NonNull<u8>>,
    serialized: SerializedRemoteKey,
    /// Shared with the keys to parts of this key's memory.
    unpacked: Arc<Unpacked>,
}

// SAFETY: the memory is accessed by atomics or assembly only.
unsafe impl Send for RemoteKey {}
// SAFETY: as above.
unsafe impl Sync for RemoteKey {}

/// UCX's key. Invariant: `handle` came from `ucp_ep_rkey_unpack` on `endpoint` and is live until
/// `drop`.
#[derive(Debug)]
struct Unpacked {
    /// None for memory of zero elements. Destroyed before the endpoint.
    handle: Option<NonNull<sys::ucp_rkey>>,
    /// Keeps local memory mapped.
    memory: Option<MemoryHandle>,
    /// Whether an operation was posted with it, which UCX may still have to carry out.
    posted: AtomicBool,
    endpoint: Endpoint,
}

// SAFETY: the rkey is used under the worker's lock.
unsafe impl Send for Unpacked {}
// SAFETY: as above.
unsafe impl Sync for Unpacked {}

impl RemoteKey {
    /// See [`Endpoint::unpack`].
    ///
    /// # Errors
    /// As there.
    pub fn from_serialized(endpoint: &Endpoint, key: &SerializedRemoteKey) -> Result<Self> {
        Self::unpack(endpoint, key, None)
    }

    /// `memory`, if it is that of this process, is kept mapped.
    fn unpack(
        endpoint: &Endpoint,
        key: &SerializedRemoteKey,
        memory: Option<MemoryHandle>,
    ) -> Result<Self> {
        endpoint.check_open()?;
        let job = endpoint.worker().context().job();
        if key.job() != job {
            return Err(Error::new(
                ErrorKind::InvalidKey,
                format!(
                    "the key belongs to job {:032x}, this is job {job:032x}",
                    key.job()
                ),
            ));
        }
        if key.context() != endpoint.peer() {
            return Err(Error::new(
                ErrorKind::InvalidKey,
                format!(
                    "the key opens memory of rank {}, and this endpoint leads to another process",
                    key.owner()
                ),
            ));
        }
        let packed = key.packed();
        let mut unpacked = Unpacked {
            handle: None,
            memory,
            posted: AtomicBool::new(false),
            endpoint: endpoint.clone(),
        };
        let mut pointer = None;
        if !packed.is_empty() {
            let _state = endpoint.worker().lock()?;
            let mut handle = ptr::null_mut();
            // SAFETY: the endpoint is live and its worker locked; the bytes are what
            // ucp_rkey_pack of the same UCX version gave in this job, by checksum.
            let status = unsafe {
                sys::ucp_ep_rkey_unpack(endpoint.raw(), packed.as_ptr().cast(), &raw mut handle)
            };
            check("ucp_ep_rkey_unpack", status)?;
            unpacked.handle = NonNull::new(handle);
            let mut address = ptr::null_mut();
            // SAFETY: the key is live; base is the start of its memory.
            let status = unsafe { sys::ucp_rkey_ptr(handle, key.base(), &raw mut address) };
            if status == sys::UCS_OK {
                pointer = NonNull::new(address.cast());
            }
        }
        Ok(Self {
            pointer,
            serialized: key.clone(),
            unpacked: Arc::new(unpacked),
        })
    }

    /// See [`MemoryHandle::remote_key`].
    ///
    /// # Errors
    /// As there.
    pub fn from_memory_handle(memory: &MemoryHandle, worker: &Worker) -> Result<Self> {
        let endpoint = worker.connect(&worker.address()?)?;
        let mut key = Self::unpack(&endpoint, &memory.pack_for_here()?, Some(memory.clone()))?;
        // Its own process's memory is there, whatever the transport says.
        key.pointer = NonNull::new(memory.as_ptr());
        Ok(key)
    }

    /// A key to `count` elements of type `T`, which lie `byte_offset` bytes into this key's
    /// memory: as good as one to memory of their own, and cheap. UCX's key is destroyed after the
    /// last of them.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`]; [`ErrorKind::WrongElement`] if they would not be aligned.
    pub(crate) fn part<T: Element>(&self, byte_offset: usize, count: usize) -> Result<Self> {
        let shape = Shape::of::<T>(count)?;
        let inside = byte_offset
            .checked_add(shape.bytes())
            .is_some_and(|end| end <= self.len());
        if !inside {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!(
                    "{} bytes from byte {byte_offset} are outside the {} that rank {} holds",
                    shape.bytes(),
                    self.len(),
                    self.owner()
                ),
            ));
        }
        let serialized = self.serialized.part(byte_offset, &shape);
        // SAFETY: mapped, and inside as just checked.
        let here = |base: NonNull<u8>| unsafe { base.add(byte_offset) };
        let pointer = self.pointer.map(here);
        let aligned_there = serialized.base().is_multiple_of(align_of::<T>() as u64);
        if !aligned_there || pointer.is_some_and(|here| !here.cast::<T>().is_aligned()) {
            return Err(Error::new(
                ErrorKind::WrongElement,
                format!(
                    "byte {byte_offset} of the memory of rank {} is not aligned for {}",
                    self.owner(),
                    std::any::type_name::<T>()
                ),
            ));
        }
        Ok(Self {
            pointer,
            serialized,
            unpacked: self.unpacked.clone(),
        })
    }

    /// The key as bytes again, as good as those it was made from.
    #[must_use]
    pub fn serialize(&self) -> SerializedRemoteKey {
        if let Some(memory) = &self.unpacked.memory {
            memory.set_packed();
        }
        self.serialized.clone()
    }

    /// Elements in the memory.
    #[must_use]
    pub fn count(&self) -> usize {
        // Bounded by the address space when parsed.
        usize::try_from(self.serialized.shape().count()).unwrap_or(usize::MAX)
    }

    /// Bytes that the owner asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.serialized.shape().bytes()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that UCX mapped at the owner: whole pages.
    #[must_use]
    pub fn mapped_len(&self) -> usize {
        usize::try_from(self.serialized.mapped_len()).unwrap_or(usize::MAX)
    }

    /// Address of the memory in its owner's process.
    #[must_use]
    pub fn base_address(&self) -> u64 {
        self.serialized.base()
    }

    /// Rank of the owner.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.serialized.owner()
    }

    /// Where the memory is mapped in this process: same-node peers and our own. Others may be
    /// writing there: access it with atomics, or not at all.
    #[must_use]
    #[doc(alias = "ucp_rkey_ptr")]
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        self.pointer
    }

    /// UCX's handle, null for a key to zero elements; valid while this key lives.
    #[must_use]
    pub fn as_raw(&self) -> sys::ucp_rkey_h {
        self.unpacked
            .handle
            .map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// The endpoint it is used through.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.unpacked.endpoint
    }

    /// The element at `offset`. Waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`], [`ErrorKind::WrongElement`], [`ErrorKind::Closed`],
    /// [`ErrorKind::InvalidValue`], or [`ErrorKind::Ucx`].
    #[doc(alias = "ucp_get_nbx")]
    pub fn get<T: Element>(&self, offset: usize) -> Result<T> {
        if let Some(from) = self.mapped::<T>(offset, 1)? {
            // SAFETY: mapped while self lives; all processes access it as element::load does.
            return unsafe { element::load(from) };
        }
        let values = self.post_get::<T>(offset, 1)?.wait()?;
        Ok(values[0])
    }

    /// `count` elements from `offset` on. Waits for them.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn get_range<T: Element>(&self, offset: usize, count: usize) -> Result<Vec<T>> {
        self.get_nb(offset, count)?.wait()
    }

    /// Starts reading `count` elements from `offset` on.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn get_nb<T: Element>(&self, offset: usize, count: usize) -> Result<Request<T>> {
        let Some(from) = self.mapped::<T>(offset, count)? else {
            return self.post_get(offset, count);
        };
        let mut buffer = Vec::<T::Bits>::with_capacity(count);
        // SAFETY: `count` elements, mapped while self lives; the new buffer has that capacity.
        unsafe { element::copy(buffer.as_mut_ptr().cast(), from, count * size_of::<T>()) };
        // SAFETY: complete, with the bytes of `count` elements in the buffer.
        Ok(unsafe { Request::new(self.read_from(), Posted::Done, buffer, count) })
    }

    /// Fills `to` with the elements from `offset` on. Waits for them. On error `to` may hold
    /// some of them, each whole.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn get_into<T: Element>(&self, offset: usize, to: &mut [T]) -> Result<()> {
        if let Some(from) = self.mapped::<T>(offset, to.len())? {
            // SAFETY: to.len() elements, mapped while self lives.
            return unsafe { element::load_slice(to, from) };
        }
        // Through a buffer of our own: should the wait end early, UCX may still write to it.
        let values = self.post_get::<T>(offset, to.len())?.wait()?;
        to.copy_from_slice(&values);
        Ok(())
    }

    /// Writes the element at `offset`. When it returns the value is on its way; it is there
    /// after [`RemoteKey::flush`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    #[doc(alias = "ucp_put_nbx")]
    pub fn put<T: Element>(&self, offset: usize, value: T) -> Result<()> {
        if let Some(to) = self.mapped::<T>(offset, 1)? {
            // SAFETY: an element, mapped while self lives.
            unsafe { element::store(to, value) };
            return Ok(());
        }
        self.post_put(offset, &[value])
    }

    /// Writes `from` to the elements from `offset` on. When it returns `from` may be reused; the
    /// values are there after [`RemoteKey::flush`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn put_range<T: Element>(&self, offset: usize, from: &[T]) -> Result<()> {
        if let Some(to) = self.mapped::<T>(offset, from.len())? {
            // SAFETY: from.len() elements, mapped while self lives.
            unsafe { element::copy(to, from.as_ptr().cast(), size_of_val(from)) };
            return Ok(());
        }
        let piece = (PUT_PIECE / size_of::<T>()).max(1);
        for (number, part) in from.chunks(piece).enumerate() {
            self.post_put(offset + number * piece, part)?;
        }
        Ok(())
    }

    /// As [`RemoteKey::put_range`]; what is returned tells when the values are in their place. As
    /// many may be kept as you like, and dropped at any time.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn put_nb<T: Element>(&self, offset: usize, from: &[T]) -> Result<PutTicket> {
        self.put_range(offset, from)?;
        Ok(PutTicket::new(
            self.pointer.is_none().then(|| self.endpoint()),
        ))
    }

    /// Waits until everything written through keys of this worker is in its place.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`], or whatever ended the wait.
    pub fn flush(&self) -> Result<()> {
        fence(Ordering::SeqCst);
        self.endpoint().worker().flush()
    }

    /// Where `count` elements of type `T` from `offset` on are mapped in this process, while this
    /// key lives; None if they are not.
    ///
    /// # Errors
    /// As [`RemoteKey::check`].
    pub(super) fn mapped<T: Element>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<Option<*mut u8>> {
        self.check::<T>(offset, count)?;
        // SAFETY: inside the memory, as just checked.
        let at = |base: NonNull<u8>| unsafe { base.as_ptr().add(offset * size_of::<T>()) };
        Ok(self.pointer.map(at))
    }

    /// Whether `count` elements of type `T` from `offset` on lie inside the memory.
    fn check<T: Element>(&self, offset: usize, count: usize) -> Result<()> {
        self.endpoint().check_open()?;
        let inside = offset
            .checked_add(count)
            .is_some_and(|end| end <= self.count());
        if !inside {
            return Err(self.out_of_bounds(offset, count));
        }
        if !self.serialized.shape().holds::<T>() {
            return Err(Error::new(
                ErrorKind::WrongElement,
                format!(
                    "the memory of rank {} holds elements of another type than {}",
                    self.owner(),
                    std::any::type_name::<T>()
                ),
            ));
        }
        Ok(())
    }

    #[cold]
    fn out_of_bounds(&self, offset: usize, count: usize) -> Error {
        Error::new(
            ErrorKind::OutOfBounds,
            format!(
                "{count} elements from offset {offset} are outside the {} that rank {} holds",
                self.count(),
                self.owner()
            ),
        )
    }

    /// UCX's handle, for an operation that is about to be posted.
    pub(super) fn post_with(&self) -> sys::ucp_rkey_h {
        self.unpacked.posted.store(true, Ordering::Relaxed);
        self.as_raw()
    }

    /// Address in the owner's process. `offset` has been checked.
    pub(super) fn remote_address<T>(&self, offset: usize) -> u64 {
        self.base_address() + (offset * size_of::<T>()) as u64
    }

    /// Elements in the owner's process. They have been checked.
    pub(super) fn elements<T>(&self, offset: usize, count: usize) -> Elements {
        Elements {
            start: self.remote_address::<T>(offset),
            count,
            size: size_of::<T>(),
        }
    }

    /// Posts a get. Bounds and type have been checked; zero elements need no operation.
    fn post_get<T: Element>(&self, offset: usize, count: usize) -> Result<Request<T>> {
        let worker = self.endpoint().worker();
        let mut buffer = Vec::<T::Bits>::with_capacity(count);
        let mut posted = Posted::Done;
        if count > 0 {
            worker.order(self.endpoint(), &self.elements::<T>(offset, count))?;
            let _state = worker.lock()?;
            let param = host_param();
            // SAFETY: endpoint and key are live, the worker locked; the range lies in the
            // owner's memory; the buffer is owned by the request, which keeps it while UCX may
            // write to it.
            let result = unsafe {
                sys::ucp_get_nbx(
                    self.endpoint().raw(),
                    buffer.as_mut_ptr().cast(),
                    count * size_of::<T>(),
                    self.remote_address::<T>(offset),
                    self.post_with(),
                    &raw const param,
                )
            };
            posted = Posted::new("ucp_get_nbx", result)?;
        }
        // SAFETY: posted on this worker, for `count` elements, into this buffer.
        Ok(unsafe { Request::new(self.read_from(), posted, buffer, count) })
    }

    fn read_from(&self) -> (Endpoint, u32) {
        (self.endpoint().clone(), self.owner())
    }

    /// Posts a put from a copy of `from`. Bounds and type have been checked.
    fn post_put<T: Element>(&self, offset: usize, from: &[T]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let worker = self.endpoint().worker();
        let bytes: &[u8] = bytemuck::cast_slice(from);
        let there = self.elements::<T>(offset, from.len());
        worker.order(self.endpoint(), &there)?;
        worker.admit(bytes.len())?;
        let buffer = bytes.to_vec();
        let mut state = worker.lock()?;
        let param = host_param();
        // SAFETY: endpoint and key are live, the worker locked; the range lies in the owner's
        // memory; the copy is kept until UCX is done with it.
        let result = unsafe {
            sys::ucp_put_nbx(
                self.endpoint().raw(),
                buffer.as_ptr().cast(),
                buffer.len(),
                self.remote_address::<T>(offset),
                self.post_with(),
                &raw const param,
            )
        };
        let posted = Posted::new("ucp_put_nbx", result)?;
        worker.set_unflushed(&mut state, self.endpoint(), &there);
        state.keep(posted, buffer);
        Ok(())
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let worker = self.endpoint.worker();
        let (Some(handle), Ok(mut state)) = (self.handle, worker.lock()) else {
            return;
        };
        if *self.posted.get_mut() {
            // UCX reads the key when it sends what it had queued: it goes after the next flush,
            // or with its endpoint.
            worker.remember(&mut state, &self.endpoint, |unflushed| {
                unflushed.keep(handle)
            });
        } else {
            state.destroy(DroppedKey(handle));
        }
    }
}
