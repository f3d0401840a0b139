//! `RemoteKey`: the right to read and write a peer's memory, and `SerializedRemoteKey`, its bytes.
//!
//! This is the seed of the library. A key owns its endpoint, knows the length and the element
//! type of the memory it opens, and checks every access against them: UCX checks nothing.

#![expect(unsafe_code, reason = "calls UCX")]

use super::context::Context;
use super::endpoint::Endpoint;
use super::memory::MemoryHandle;
use super::request::{Posted, Request};
use super::seal::{self, Kind, Reader};
use super::status::check;
use super::unflushed::Elements;
use super::worker::{Worker, host_param};
use crate::element::{self, AtomicElement, Element};
use crate::error::{Error, ErrorKind, Result};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use ucx_sys as sys;

/// Largest piece of one put: bounds the copy that is made of it.
const PUT_PIECE: usize = 1 << 20;

/// What memory holds: how many elements, of which type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    count: u64,
    size: u32,
    granule: u32,
    /// Of the type's name: tells `u64` from `f64`. Equal in all binaries, unlike `TypeId`.
    type_hash: u64,
}

impl Shape {
    pub(super) fn of<T: Element>(count: usize) -> Result<Self> {
        let too_large = || Error::new(ErrorKind::NoRoom, "the size in bytes overflows");
        count
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(too_large)?;
        Ok(Self {
            count: count as u64,
            size: u32::try_from(size_of::<T>()).map_err(|_| too_large())?,
            granule: u32::try_from(element::granule::<T>()).map_err(|_| too_large())?,
            type_hash: element::type_hash::<T>(),
        })
    }

    pub(super) fn bytes(&self) -> usize {
        // Checked when the shape was made or parsed.
        usize::try_from(self.count * u64::from(self.size)).unwrap_or(usize::MAX)
    }
}

/// A packed key: bytes to send to a peer by any channel, with a header and a checksum. Nothing
/// that was damaged on the way, or that belongs to another job or UCX version, becomes a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerializedRemoteKey {
    bytes: Vec<u8>,
    job: u128,
    header: Header,
}

/// Fixed little-endian fields in front of the packed rkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    owner: u32,
    base: u64,
    mapped_len: u64,
    shape: Shape,
}

const HEADER: usize = 4 + 8 + 8 + 8 + 4 + 4 + 8;

impl SerializedRemoteKey {
    pub(super) fn new(
        context: &Context,
        base: u64,
        mapped_len: u64,
        shape: &Shape,
        packed: &[u8],
    ) -> Self {
        let header = Header {
            owner: context.rank(),
            base,
            mapped_len,
            shape: *shape,
        };
        let mut body = Vec::with_capacity(HEADER + packed.len());
        body.extend_from_slice(&header.owner.to_le_bytes());
        body.extend_from_slice(&base.to_le_bytes());
        body.extend_from_slice(&mapped_len.to_le_bytes());
        body.extend_from_slice(&shape.count.to_le_bytes());
        body.extend_from_slice(&shape.size.to_le_bytes());
        body.extend_from_slice(&shape.granule.to_le_bytes());
        body.extend_from_slice(&shape.type_hash.to_le_bytes());
        body.extend_from_slice(packed);
        Self {
            bytes: seal::seal(Kind::Key, context.job(), &body),
            job: context.job(),
            header,
        }
    }

    /// The key that [`SerializedRemoteKey::as_bytes`] gave.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] unless every byte is as it was packed, by the same UCX version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (job, body) = seal::open(Kind::Key, bytes)?;
        let damaged = || Error::new(ErrorKind::InvalidKey, "not a valid serialized remote key");
        if body.len() < HEADER {
            return Err(damaged());
        }
        let mut fields = Reader(body);
        let header = Header {
            owner: fields.u32(),
            base: fields.u64(),
            mapped_len: fields.u64(),
            shape: Shape {
                count: fields.u64(),
                size: fields.u32(),
                granule: fields.u32(),
                type_hash: fields.u64(),
            },
        };
        let bytes_in_all = header.shape.count.checked_mul(header.shape.size.into());
        let fits = bytes_in_all.is_some_and(|len| {
            len <= header.mapped_len && header.base.checked_add(header.mapped_len).is_some()
        });
        if !fits {
            return Err(damaged());
        }
        Ok(Self {
            bytes: bytes.to_vec(),
            job,
            header,
        })
    }

    /// The bytes to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Rank of the process whose memory it opens.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.header.owner
    }

    fn packed(&self) -> &[u8] {
        // Checked when it was made: frame and header are there.
        seal::open(Kind::Key, &self.bytes).map_or(&[], |(_, body)| &body[HEADER..])
    }
}

impl serde::Serialize for SerializedRemoteKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bytes.serialize(serializer)
    }
}

impl<'de> serde::Deserialize<'de> for SerializedRemoteKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Self::from_bytes(&bytes).map_err(serde::de::Error::custom)
    }
}

/// The right to read and write one peer's memory. Offsets are in elements from its start.
///
/// Every access is checked against the length and the element type. Where the peer's memory is
/// mapped into this process it is a load or store; elsewhere it is a UCX operation. Nobody is
/// asked at the other side, except that some transports (tcp) need the owner to progress the
/// worker this key's endpoint leads to.
#[derive(Debug)]
pub struct RemoteKey {
    /// None for memory of zero elements. Destroyed before the endpoint.
    handle: Option<NonNull<sys::ucp_rkey>>,
    /// Where the peer's memory is mapped in this process.
    pointer: Option<NonNull<u8>>,
    serialized: SerializedRemoteKey,
    /// Keeps local memory mapped.
    _memory: Option<MemoryHandle>,
    endpoint: Endpoint,
}

// SAFETY: the rkey is used under the worker's lock; the memory by atomics or assembly only.
unsafe impl Send for RemoteKey {}
// SAFETY: as above.
unsafe impl Sync for RemoteKey {}

/// The atomic operations that UCX has, all returning the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    And,
    Or,
    Xor,
    Swap,
}

impl RemoteKey {
    /// See [`Endpoint::unpack`].
    ///
    /// # Errors
    /// As there.
    pub fn from_serialized(endpoint: &Endpoint, key: &SerializedRemoteKey) -> Result<Self> {
        endpoint.check_open()?;
        let job = endpoint.worker().context().job();
        if key.job != job {
            return Err(Error::new(
                ErrorKind::InvalidKey,
                format!(
                    "the key belongs to job {:032x}, this is job {job:032x}",
                    key.job
                ),
            ));
        }
        let packed = key.packed();
        let mut this = Self {
            handle: None,
            pointer: None,
            serialized: key.clone(),
            _memory: None,
            endpoint: endpoint.clone(),
        };
        if packed.is_empty() {
            return Ok(this);
        }
        let _state = endpoint.worker().lock()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the endpoint is live and its worker locked; the bytes are what ucp_rkey_pack
        // of the same UCX version gave in this job, by checksum.
        let status = unsafe {
            sys::ucp_ep_rkey_unpack(endpoint.raw(), packed.as_ptr().cast(), &raw mut handle)
        };
        check("ucp_ep_rkey_unpack", status)?;
        this.handle = NonNull::new(handle);
        let mut address = ptr::null_mut();
        // SAFETY: the key is live; base is the start of its memory.
        let status = unsafe { sys::ucp_rkey_ptr(handle, key.header.base, &raw mut address) };
        if status == sys::UCS_OK {
            this.pointer = NonNull::new(address.cast());
        }
        Ok(this)
    }

    /// See [`MemoryHandle::remote_key`].
    ///
    /// # Errors
    /// As there.
    pub fn from_memory_handle(memory: &MemoryHandle, worker: &Worker) -> Result<Self> {
        let endpoint = worker.connect(&worker.address()?)?;
        let mut key = Self::from_serialized(&endpoint, &memory.pack()?)?;
        // Its own process's memory is there, whatever the transport says.
        key.pointer = NonNull::new(memory.as_ptr());
        key._memory = Some(memory.clone());
        Ok(key)
    }

    /// The key as bytes again, as good as those it was made from.
    #[must_use]
    pub fn serialize(&self) -> SerializedRemoteKey {
        self.serialized.clone()
    }

    /// Elements in the memory.
    #[must_use]
    pub fn count(&self) -> usize {
        // Bounded by the address space when parsed.
        usize::try_from(self.serialized.header.shape.count).unwrap_or(usize::MAX)
    }

    /// Bytes that the owner asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.serialized.header.shape.bytes()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that UCX mapped at the owner: whole pages.
    #[must_use]
    pub fn mapped_len(&self) -> usize {
        usize::try_from(self.serialized.header.mapped_len).unwrap_or(usize::MAX)
    }

    /// Address of the memory in its owner's process.
    #[must_use]
    pub fn base_address(&self) -> u64 {
        self.serialized.header.base
    }

    /// Rank of the owner.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.serialized.header.owner
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
        self.handle.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// The endpoint it is used through.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The element at `offset`. Waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`], [`ErrorKind::WrongElement`], [`ErrorKind::Closed`],
    /// [`ErrorKind::InvalidValue`], or [`ErrorKind::Ucx`].
    #[doc(alias = "ucp_get_nbx")]
    pub fn get<T: Element>(&self, offset: usize) -> Result<T> {
        self.check::<T>(offset, 1)?;
        if let Some(pointer) = self.pointer {
            // SAFETY: mapped while self lives, checked above to hold a T at `offset`.
            let from = unsafe { pointer.as_ptr().add(offset * size_of::<T>()) };
            // SAFETY: as above; all processes access it as element::load does.
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
        self.check::<T>(offset, count)?;
        let Some(pointer) = self.pointer else {
            return self.post_get(offset, count);
        };
        let mut buffer = Vec::<T::Bits>::with_capacity(count);
        // SAFETY: mapped while self lives, checked above to hold `count` from `offset`.
        let from = unsafe { pointer.as_ptr().add(offset * size_of::<T>()) };
        // SAFETY: as above; the new buffer has that capacity.
        unsafe { element::copy(buffer.as_mut_ptr().cast(), from, count * size_of::<T>()) };
        // SAFETY: complete, with the bytes of `count` elements in the buffer.
        Ok(unsafe { Request::new(self.endpoint.worker().clone(), Posted::Done, buffer, count) })
    }

    /// Fills `to` with the elements from `offset` on. Waits for them. On error `to` may hold
    /// some of them, each whole.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn get_into<T: Element>(&self, offset: usize, to: &mut [T]) -> Result<()> {
        self.check::<T>(offset, to.len())?;
        if let Some(pointer) = self.pointer {
            // SAFETY: mapped while self lives, checked above to hold to.len() from `offset`.
            let from = unsafe { pointer.as_ptr().add(offset * size_of::<T>()) };
            // SAFETY: as above.
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
        self.check::<T>(offset, 1)?;
        if let Some(pointer) = self.pointer {
            // SAFETY: mapped while self lives, checked above to hold a T at `offset`.
            let to = unsafe { pointer.as_ptr().add(offset * size_of::<T>()) };
            // SAFETY: as above.
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
        self.check::<T>(offset, from.len())?;
        if let Some(pointer) = self.pointer {
            // SAFETY: mapped while self lives, checked above to hold from.len() from `offset`.
            let to = unsafe { pointer.as_ptr().add(offset * size_of::<T>()) };
            // SAFETY: as above.
            unsafe { element::copy(to, from.as_ptr().cast(), size_of_val(from)) };
            return Ok(());
        }
        let piece = (PUT_PIECE / size_of::<T>()).max(1);
        for (number, part) in from.chunks(piece).enumerate() {
            self.post_put(offset + number * piece, part)?;
        }
        Ok(())
    }

    /// Waits until everything written through keys of this worker is in its place.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`], or whatever ended the wait.
    pub fn flush(&self) -> Result<()> {
        std::sync::atomic::fence(SeqCst);
        self.endpoint.worker().flush()
    }

    /// Adds `value` to the element at `offset`, wrapping around; returns the value before. Waits.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    #[doc(alias = "ucp_atomic_op_nbx")]
    pub fn fetch_add<T: AtomicElement>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::Add, offset, value)
    }

    /// Bitwise and, as [`RemoteKey::fetch_add`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn fetch_and<T: AtomicElement>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::And, offset, value)
    }

    /// Bitwise or, as [`RemoteKey::fetch_add`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn fetch_or<T: AtomicElement>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::Or, offset, value)
    }

    /// Bitwise exclusive or, as [`RemoteKey::fetch_add`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn fetch_xor<T: AtomicElement>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::Xor, offset, value)
    }

    /// Stores `value`, as [`RemoteKey::fetch_add`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn swap<T: AtomicElement>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::Swap, offset, value)
    }

    /// Stores `new` if the element is `current`; returns the value before. Waits.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn compare_exchange<T: AtomicElement>(
        &self,
        offset: usize,
        current: T,
        new: T,
    ) -> Result<T> {
        self.check::<T>(offset, 1)?;
        if let Some(pointer) = self.pointer {
            // SAFETY: mapped while self lives, checked above to hold a T at `offset`.
            let at = unsafe { pointer.as_ptr().add(offset * size_of::<T>()) };
            // SAFETY: as above.
            return Ok(unsafe { compare_exchange_at(at, current, new) });
        }
        self.post_atomic(sys::UCP_ATOMIC_OP_CSWAP, offset, current, new)
    }

    pub(crate) fn fetch_op<T: AtomicElement>(
        &self,
        op: AtomicOp,
        offset: usize,
        value: T,
    ) -> Result<T> {
        self.check::<T>(offset, 1)?;
        if let Some(pointer) = self.pointer {
            // SAFETY: mapped while self lives, checked above to hold a T at `offset`.
            let at = unsafe { pointer.as_ptr().add(offset * size_of::<T>()) };
            // SAFETY: as above.
            return Ok(unsafe { fetch_op_at(op, at, value) });
        }
        let opcode = match op {
            AtomicOp::Add => sys::UCP_ATOMIC_OP_ADD,
            AtomicOp::And => sys::UCP_ATOMIC_OP_AND,
            AtomicOp::Or => sys::UCP_ATOMIC_OP_OR,
            AtomicOp::Xor => sys::UCP_ATOMIC_OP_XOR,
            AtomicOp::Swap => sys::UCP_ATOMIC_OP_SWAP,
        };
        self.post_atomic(opcode, offset, value, value)
    }

    /// Whether `count` elements of type `T` from `offset` on lie inside the memory.
    fn check<T: Element>(&self, offset: usize, count: usize) -> Result<()> {
        self.endpoint.check_open()?;
        let shape = &self.serialized.header.shape;
        let inside = offset
            .checked_add(count)
            .is_some_and(|end| end as u64 <= shape.count);
        if !inside {
            return Err(self.out_of_bounds(offset, count));
        }
        if shape.size as usize != size_of::<T>()
            || shape.granule as usize != element::granule::<T>()
            || shape.type_hash != element::type_hash::<T>()
        {
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

    /// Address in the owner's process. `offset` has been checked.
    fn remote_address<T>(&self, offset: usize) -> u64 {
        self.base_address() + (offset * size_of::<T>()) as u64
    }

    /// Elements in the owner's process. They have been checked.
    fn elements<T>(&self, offset: usize, count: usize) -> Elements {
        Elements {
            start: self.remote_address::<T>(offset),
            count,
            size: size_of::<T>(),
        }
    }

    /// Posts a get. Bounds and type have been checked; zero elements need no operation.
    fn post_get<T: Element>(&self, offset: usize, count: usize) -> Result<Request<T>> {
        let worker = self.endpoint.worker();
        let mut buffer = Vec::<T::Bits>::with_capacity(count);
        let mut posted = Posted::Done;
        if count > 0 {
            worker.order(&self.endpoint, &self.elements::<T>(offset, count))?;
            let _state = worker.lock()?;
            let param = host_param();
            // SAFETY: endpoint and key are live, the worker locked; the range lies in the
            // owner's memory; the buffer is owned by the request, which keeps it while UCX may
            // write to it.
            let result = unsafe {
                sys::ucp_get_nbx(
                    self.endpoint.raw(),
                    buffer.as_mut_ptr().cast(),
                    count * size_of::<T>(),
                    self.remote_address::<T>(offset),
                    self.as_raw(),
                    &raw const param,
                )
            };
            posted = Posted::new("ucp_get_nbx", result)?;
        }
        // SAFETY: posted on this worker, for `count` elements, into this buffer.
        Ok(unsafe { Request::new(worker.clone(), posted, buffer, count) })
    }

    /// Posts a put from a copy of `from`. Bounds and type have been checked.
    fn post_put<T: Element>(&self, offset: usize, from: &[T]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let worker = self.endpoint.worker();
        let bytes: &[u8] = bytemuck::cast_slice(from);
        let there = self.elements::<T>(offset, from.len());
        worker.order(&self.endpoint, &there)?;
        worker.admit(bytes.len())?;
        let buffer = bytes.to_vec();
        let mut state = worker.lock()?;
        let param = host_param();
        // SAFETY: endpoint and key are live, the worker locked; the range lies in the owner's
        // memory; the copy is kept until UCX is done with it.
        let result = unsafe {
            sys::ucp_put_nbx(
                self.endpoint.raw(),
                buffer.as_ptr().cast(),
                buffer.len(),
                self.remote_address::<T>(offset),
                self.as_raw(),
                &raw const param,
            )
        };
        let posted = Posted::new("ucp_put_nbx", result)?;
        worker.set_unflushed(&mut state, &self.endpoint, &there);
        state.keep(posted, buffer);
        Ok(())
    }

    /// Posts an atomic and waits for its reply, the value before.
    fn post_atomic<T: AtomicElement>(
        &self,
        opcode: sys::ucp_atomic_op_t,
        offset: usize,
        operand: T,
        reply: T,
    ) -> Result<T> {
        let worker = self.endpoint.worker();
        // Operand, then reply: owned, since UCX reads and writes them until it is done.
        let mut words = Box::new([operand, reply]);
        worker.order(&self.endpoint, &self.elements::<T>(offset, 1))?;
        let posted = {
            let _state = worker.lock()?;
            let mut param = host_param();
            param.op_attr_mask |=
                sys::UCP_OP_ATTR_FIELD_DATATYPE | sys::UCP_OP_ATTR_FIELD_REPLY_BUFFER;
            param.datatype = sys::ucp_dt_make_contig(size_of::<T>());
            param.reply_buffer = (&raw mut words[1]).cast();
            // SAFETY: endpoint and key are live, the worker locked; the element lies in the
            // owner's memory, naturally aligned; `words` outlives the operation (see below).
            let result = unsafe {
                sys::ucp_atomic_op_nbx(
                    self.endpoint.raw(),
                    opcode,
                    (&raw const words[0]).cast(),
                    1,
                    self.remote_address::<T>(offset),
                    self.as_raw(),
                    &raw const param,
                )
            };
            Posted::new("ucp_atomic_op_nbx", result)?
        };
        if let Err(error) = worker.wait(posted) {
            std::mem::forget(words); // UCX may still write the reply.
            return Err(error);
        }
        // SAFETY: UCX wrote the reply through the pointer; a volatile read sees it.
        Ok(unsafe { ptr::read_volatile(&raw const words[1]) })
    }
}

impl Drop for RemoteKey {
    fn drop(&mut self) {
        let (Some(handle), Ok(_state)) = (self.handle, self.endpoint.worker().lock()) else {
            return;
        };
        // SAFETY: live, destroyed once, before its endpoint, with the worker locked.
        unsafe { sys::ucp_rkey_destroy(handle.as_ptr()) };
    }
}

/// An atomic operation by the processor; returns the value before.
///
/// # Safety
/// `at` points to a `T` in mapped shared memory, aligned, accessed by atomics of its size only.
#[inline]
pub(crate) unsafe fn fetch_op_at<T: AtomicElement>(op: AtomicOp, at: *mut u8, value: T) -> T {
    let bits = value.to_bits();
    macro_rules! apply {
        ($atomic:ident, $bits:expr) => {
            match op {
                AtomicOp::Add => $atomic.fetch_add($bits, SeqCst),
                AtomicOp::And => $atomic.fetch_and($bits, SeqCst),
                AtomicOp::Or => $atomic.fetch_or($bits, SeqCst),
                AtomicOp::Xor => $atomic.fetch_xor($bits, SeqCst),
                AtomicOp::Swap => $atomic.swap($bits, SeqCst),
            }
        };
    }
    if size_of::<T>() == 8 {
        // SAFETY: by the caller.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        T::from_bits(apply!(word, bits))
    } else {
        // SAFETY: by the caller; AtomicElement has only 4 and 8 bytes.
        let word = unsafe { AtomicU32::from_ptr(at.cast()) };
        T::from_bits(apply!(word, low_half(bits)).into())
    }
}

/// Compare and exchange by the processor; returns the value before.
///
/// # Safety
/// As for [`fetch_op_at`].
#[inline]
pub(crate) unsafe fn compare_exchange_at<T: AtomicElement>(at: *mut u8, current: T, new: T) -> T {
    let (current, new) = (current.to_bits(), new.to_bits());
    if size_of::<T>() == 8 {
        // SAFETY: by the caller.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        let (Ok(before) | Err(before)) = word.compare_exchange(current, new, SeqCst, SeqCst);
        T::from_bits(before)
    } else {
        // SAFETY: by the caller; AtomicElement has only 4 and 8 bytes.
        let word = unsafe { AtomicU32::from_ptr(at.cast()) };
        let (Ok(before) | Err(before)) =
            word.compare_exchange(low_half(current), low_half(new), SeqCst, SeqCst);
        T::from_bits(before.into())
    }
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half is zero: to_bits of 4 bytes"
)]
fn low_half(bits: u64) -> u32 {
    bits as u32
}
