//! Atomic operations on a peer's memory: those that UCX has.

#![expect(unsafe_code, reason = "calls UCX")]

use super::request::Posted;
use super::rkey::RemoteKey;
use super::unflushed::Unflushed;
use super::worker::host_param;
use crate::atomic::{self, AtomicElement, AtomicOp, NativeAtomic};
use crate::error::{Error, ErrorKind, Result};
use std::ptr;
use ucx_sys as sys;

impl RemoteKey {
    /// Adds `value` to the element at `offset`, wrapping around; returns the value before. Waits.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    #[doc(alias = "ucp_atomic_op_nbx")]
    pub fn fetch_add<T: NativeAtomic>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::Add, offset, value)
    }

    /// Bitwise and, as [`RemoteKey::fetch_add`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn fetch_and<T: NativeAtomic>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::And, offset, value)
    }

    /// Bitwise or, as [`RemoteKey::fetch_add`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn fetch_or<T: NativeAtomic>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::Or, offset, value)
    }

    /// Bitwise exclusive or, as [`RemoteKey::fetch_add`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn fetch_xor<T: NativeAtomic>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::Xor, offset, value)
    }

    /// Stores `value`, as [`RemoteKey::fetch_add`].
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn swap<T: NativeAtomic>(&self, offset: usize, value: T) -> Result<T> {
        self.fetch_op(AtomicOp::Swap, offset, value)
    }

    /// Stores `new` if the element is `current`; returns the value before. Waits.
    ///
    /// # Errors
    /// As for [`RemoteKey::get`].
    pub fn compare_exchange<T: NativeAtomic>(
        &self,
        offset: usize,
        current: T,
        new: T,
    ) -> Result<T> {
        self.exchange(offset, current, new)
    }

    /// An operation that UCX has for the type, or any where the memory is mapped.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], or as for [`RemoteKey::get`].
    pub(crate) fn fetch_op<T: AtomicElement>(
        &self,
        op: AtomicOp,
        offset: usize,
        value: T,
    ) -> Result<T> {
        if let Some(at) = self.mapped::<T>(offset, 1)? {
            // SAFETY: an element, mapped while self lives.
            return Ok(unsafe { atomic::fetch_op_at(op, at, value) });
        }
        if !T::CLASS.has_natively(op) {
            return Err(unsupported::<T>());
        }
        let (opcode, value) = match op {
            AtomicOp::Add => (sys::UCP_ATOMIC_OP_ADD, value),
            AtomicOp::Sub => (sys::UCP_ATOMIC_OP_ADD, value.negated()),
            AtomicOp::And => (sys::UCP_ATOMIC_OP_AND, value),
            AtomicOp::Or => (sys::UCP_ATOMIC_OP_OR, value),
            AtomicOp::Xor => (sys::UCP_ATOMIC_OP_XOR, value),
            AtomicOp::Swap => (sys::UCP_ATOMIC_OP_SWAP, value),
            AtomicOp::Mul | AtomicOp::Min | AtomicOp::Max => return Err(unsupported::<T>()),
        };
        self.post_atomic(opcode, offset, value, value)
    }

    /// Compare and exchange, as [`RemoteKey::fetch_op`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn exchange<T: AtomicElement>(
        &self,
        offset: usize,
        current: T,
        new: T,
    ) -> Result<T> {
        if let Some(at) = self.mapped::<T>(offset, 1)? {
            // SAFETY: an element, mapped while self lives.
            return Ok(unsafe { atomic::compare_exchange_at(at, current, new) });
        }
        if !T::CLASS.is_native() {
            return Err(unsupported::<T>());
        }
        self.post_atomic(sys::UCP_ATOMIC_OP_CSWAP, offset, current, new)
    }

    /// Posts an atomic and waits for its reply, the value before.
    fn post_atomic<T: AtomicElement>(
        &self,
        opcode: sys::ucp_atomic_op_t,
        offset: usize,
        operand: T,
        reply: T,
    ) -> Result<T> {
        let worker = self.endpoint().worker();
        // Operand, then reply: owned, since UCX reads and writes them until it is done.
        let mut words = Box::new([operand, reply]);
        worker.order(self.endpoint(), &self.elements::<T>(offset, 1))?;
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
                    self.endpoint().raw(),
                    opcode,
                    (&raw const words[0]).cast(),
                    1,
                    self.remote_address::<T>(offset),
                    self.post_with(),
                    &raw const param,
                )
            };
            Posted::new("ucp_atomic_op_nbx", result)?
        };
        if let Err(error) = worker.wait(posted) {
            std::mem::forget(words); // UCX may still write the reply.
            if let Ok(mut state) = worker.lock() {
                worker.remember(&mut state, self.endpoint(), Unflushed::abandon);
            }
            return Err(error);
        }
        // SAFETY: UCX wrote the reply through the pointer; a volatile read sees it.
        Ok(unsafe { ptr::read_volatile(&raw const words[1]) })
    }
}

#[cold]
fn unsupported<T>() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "UCX has no such operation on {}",
            std::any::type_name::<T>()
        ),
    )
}
