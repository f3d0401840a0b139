//! `Worker`: where communication happens, and the only place that progresses it and waits for it.

#![expect(unsafe_code, reason = "calls UCX")]

use super::context::Context;
use super::endpoint::{Endpoint, WeakEndpoint};
use super::flush::Flushes;
use super::message::Slot;
use super::request::{InFlight, Outcome, Posted};
use super::seal::{self, Kind};
use super::status::check;
use super::unflushed::{DroppedKey, Elements, Unflushed};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::{Concern, Concerned, Limits, Patience};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use ucx_sys as sys;

/// Bytes and operations that may be in flight before a new one waits for the oldest: bounds
/// memory here and at the receivers.
const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;
const MAX_IN_FLIGHT: usize = 4096;

/// Longest sleep of a thread that is not the only one to wait on its worker.
const SHARED_NAP: Duration = Duration::from_millis(1);

/// A place where communication happens. Cloning shares it. All methods may be called from any
/// thread; a lock inside makes them take turns.
#[derive(Clone, Debug)]
pub struct Worker(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    // Dropped after `Drop::drop` below has destroyed the worker.
    state: Mutex<State>,
    event_fd: i32,
    /// Whether a flush has anything to wait for. Changed with `state` locked.
    pub(super) unflushed: AtomicBool,
    pub(super) flushes: Flushes,
    /// Messages under way, which go on only while this worker is progressed.
    messages: Arc<AtomicUsize>,
    /// What else goes on while somebody waits.
    pumps: Mutex<Vec<Pumped>>,
    /// The process is about to end: endpoints are not closed, nor the worker destroyed.
    ending: AtomicBool,
    limits: Arc<Limits>,
    context: Context,
}

/// Something that goes on while a thread of this process waits, whatever for.
pub(crate) trait Pump: Send + Sync + std::fmt::Debug {
    /// Goes on as far as that is possible without waiting. Whether there is nothing left to do.
    fn pump(&self) -> bool;
}

#[derive(Debug)]
struct Pumped {
    pump: Weak<dyn Pump>,
    /// If nobody else keeps it.
    _kept: Option<Arc<dyn Pump>>,
}

/// Invariant: `handle` came from `ucp_worker_create` and is live until `Inner` is dropped. UCX
/// functions on the worker, its endpoints, keys and requests are called with the lock held.
#[derive(Debug)]
pub(super) struct State {
    handle: NonNull<sys::ucp_worker>,
    /// Operations nobody waits for, with the buffers they use, oldest first.
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
    /// Messages given up while under way, with their buffers: how they end matters to nobody.
    orphans: Vec<InFlight>,
    /// Messages to be taken as soon as they come, in the order in which they were asked for.
    pub(super) expected: VecDeque<Arc<Slot>>,
    /// Messages under way or expected, those given up included.
    pub(super) messages: Arc<AtomicUsize>,
    /// Endpoints that a flush has to wait for: see [`Unflushed`].
    pub(super) written: Vec<WeakEndpoint>,
    /// The first failure of an operation nobody waited for: the next flush reports it.
    pub(super) failure: Option<Error>,
    /// Threads in [`Worker::wait_for`].
    waiters: usize,
}

// SAFETY: a worker made with UCS_THREAD_MODE_SERIALIZED may be used from any thread, one at a
// time, which the mutex around State ensures.
unsafe impl Send for State {}

impl Inner {
    fn pumps(&self) -> MutexGuard<'_, Vec<Pumped>> {
        self.pumps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retain_pumps(&self, mut keep: impl FnMut(&Weak<dyn Pump>) -> bool) {
        let mut pumps = self.pumps();
        let before = pumps.len();
        pumps.retain(|pumped| keep(&pumped.pump));
        self.messages
            .fetch_sub(before - pumps.len(), Ordering::Relaxed);
    }
}

impl Worker {
    pub(super) fn new(context: &Context, limits: &Arc<Limits>) -> Result<Self> {
        context.refuse_fork()?;
        let params = sys::ucp_worker_params_t {
            field_mask: sys::UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            thread_mode: sys::UCS_THREAD_MODE_SERIALIZED,
            ..sys::ucp_worker_params_t::ZEROED
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the context is live, params valid, handle written on success.
        let status =
            unsafe { sys::ucp_worker_create(context.as_raw(), &raw const params, &raw mut handle) };
        check("ucp_worker_create", status)?;
        let handle = NonNull::new(handle)
            .ok_or_else(|| Error::new(ErrorKind::Ucx, "ucp_worker_create: no worker"))?;
        // From here on a failure must destroy the worker: Inner's drop does.
        let messages = Arc::new(AtomicUsize::new(0));
        let mut inner = Inner {
            state: Mutex::new(State {
                handle,
                in_flight: VecDeque::new(),
                in_flight_bytes: 0,
                orphans: Vec::new(),
                expected: VecDeque::new(),
                messages: messages.clone(),
                written: Vec::new(),
                failure: None,
                waiters: 0,
            }),
            event_fd: -1,
            limits: limits.clone(),
            unflushed: AtomicBool::new(false),
            flushes: Flushes::default(),
            pumps: Mutex::default(),
            messages,
            ending: AtomicBool::new(false),
            context: context.clone(),
        };
        // SAFETY: the worker is live; its context has UCP_FEATURE_WAKEUP.
        let status = unsafe { sys::ucp_worker_get_efd(handle.as_ptr(), &raw mut inner.event_fd) };
        check("ucp_worker_get_efd", status)?;
        Ok(Self(Arc::new(inner)))
    }

    /// The address that [`Worker::connect`] of another worker takes.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`].
    #[doc(alias = "ucp_worker_get_address")]
    pub fn address(&self) -> Result<WorkerAddress> {
        let state = self.lock()?;
        let (mut address, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the worker is live and locked; both results are written on success.
        let status = unsafe {
            sys::ucp_worker_get_address(state.handle.as_ptr(), &raw mut address, &raw mut len)
        };
        check("ucp_worker_get_address", status)?;
        // SAFETY: UCX returned `len` bytes there, live until released below.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) }.to_vec();
        // SAFETY: of this worker, released once.
        unsafe { sys::ucp_worker_release_address(state.handle.as_ptr(), address) };
        Ok(WorkerAddress {
            job: self.context().job(),
            context: self.context().id(),
            bytes,
        })
    }

    /// Connects to the worker at `address`. Local: the peer does nothing, and the connection is
    /// made at the first operation.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] for an address of another job; [`ErrorKind::Ucx`].
    #[doc(alias = "ucp_ep_create")]
    pub fn connect(&self, address: &WorkerAddress) -> Result<Endpoint> {
        if address.job != self.context().job() {
            return Err(Error::new(
                ErrorKind::InvalidKey,
                format!("a worker address of another job ({:032x})", address.job),
            ));
        }
        Endpoint::new(self, address.context, &address.bytes)
    }

    /// Lets UCX do what it can do now; returns whether it did anything.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in a forked child.
    #[doc(alias = "ucp_worker_progress")]
    pub fn progress(&self) -> Result<bool> {
        Ok(self.lock()?.progress())
    }

    pub(super) fn count_message(&self) {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// For waits for something else than this worker: progresses it if it has messages under way,
    /// which might wait for this side. Whether it has.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`].
    pub(crate) fn help_messages(&self) -> Result<bool> {
        if self.0.messages.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        self.progress()?;
        self.pump();
        Ok(true)
    }

    /// From now on `pump` goes on whenever somebody waits, until it is dropped.
    pub(crate) fn add_pump(&self, pump: Weak<dyn Pump>) {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.pumps().push(Pumped { pump, _kept: None });
    }

    /// It goes on no more.
    pub(crate) fn drop_pump(&self, pump: &Weak<dyn Pump>) {
        self.0.retain_pumps(|other| !other.ptr_eq(pump));
    }

    /// The same until there is nothing left to do. It must not keep this worker.
    pub(crate) fn keep_pump(&self, pump: Arc<dyn Pump>) {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.pumps().push(Pumped {
            pump: Arc::downgrade(&pump),
            _kept: Some(pump),
        });
    }

    /// Lets what is to be pumped go on.
    fn pump(&self) {
        let mut live = Vec::new();
        self.0.retain_pumps(|pump| {
            let pump = pump.upgrade();
            live.extend(pump.clone());
            pump.is_some()
        });
        live.retain(|pump| pump.pump());
        if !live.is_empty() {
            let over: Vec<_> = live.iter().map(Arc::downgrade).collect();
            self.0
                .retain_pumps(|pump| !over.iter().any(|over| over.ptr_eq(pump)));
        }
    }

    /// The longest that a wait for one operation may take before it ends with
    /// [`ErrorKind::Timeout`]; `None` is for ever.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.0.limits.set_timeout(timeout);
    }

    /// The context it was made from.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// UCX's handle. Other threads may be using it.
    #[must_use]
    pub fn as_raw(&self) -> sys::ucp_worker_h {
        self.state().handle.as_ptr()
    }

    /// From now on endpoints are not closed and the worker is not destroyed, but left for the end
    /// of the process. For the end of a job over a network: peers may be gone already, which
    /// closing would report as a failure; and UCX 1.13 aborts when a worker is destroyed while
    /// the handshake of a connection that nobody used is still queued (6 of 100 short jobs).
    pub(crate) fn end(&self) {
        self.0.ending.store(true, Ordering::Release);
    }

    pub(super) fn is_ending(&self) -> bool {
        self.0.ending.load(Ordering::Acquire)
    }

    /// Waits for a posted operation.
    pub(super) fn wait(&self, posted: Posted) -> Result<()> {
        let Posted::InFlight(request) = posted else {
            return Ok(());
        };
        let outcome = self.wait_for(|_| match posted.test() {
            Outcome::Pending => None,
            Outcome::Complete(result) => Some(result),
        });
        self.state().free(request);
        outcome?
    }

    /// Progresses the worker until `ready` gives a value; spins, yields, then sleeps on the
    /// worker's file descriptor.
    pub(super) fn wait_for<R>(&self, ready: impl FnMut(&mut State) -> Option<R>) -> Result<R> {
        self.wait_with(Patience::new(), ready)
    }

    /// As [`Worker::wait_for`], with a patience of its own.
    pub(super) fn wait_with<R>(
        &self,
        mut patience: Patience<'_>,
        mut ready: impl FnMut(&mut State) -> Option<R>,
    ) -> Result<R> {
        self.lock()?.waiters += 1;
        let outcome = loop {
            let alone = match self.lock() {
                Ok(mut state) => {
                    state.progress();
                    if let Some(value) = ready(&mut state) {
                        break Ok(value);
                    }
                    state.waiters == 1
                }
                Err(error) => break Err(error),
            };
            if self.0.messages.load(Ordering::Relaxed) > 0 {
                self.pump();
            }
            let slept = patience.pause(&self.0.limits).and_then(|nap| match nap {
                None => Ok(()),
                // Another thread may progress what this one waits for, and take its wake-up.
                Some(nap) => self.sleep(if alone { nap } else { nap.min(SHARED_NAP) }),
            });
            if let Err(error) = slept {
                break Err(error);
            }
        };
        if let Ok(mut state) = self.lock() {
            state.waiters -= 1;
        }
        outcome
    }

    /// What this thread waits for until the result is dropped comes from that rank.
    pub(super) fn concerned_with(&self, rank: u32) -> Concerned {
        self.0.limits.concerned(|| Concern::Rank(rank as usize))
    }

    /// Sleeps until the worker has something to do, or for `nap`.
    pub(crate) fn sleep(&self, nap: Duration) -> Result<()> {
        {
            let state = self.lock()?;
            // SAFETY: the worker is live and locked.
            let status = unsafe { sys::ucp_worker_arm(state.handle.as_ptr()) };
            if status == sys::UCS_ERR_BUSY {
                return Ok(()); // There is something to progress first.
            }
            check("ucp_worker_arm", status)?;
        }
        // SAFETY: the descriptor is the worker's and stays open while `self` lives.
        let fd = unsafe { BorrowedFd::borrow_raw(self.0.event_fd) };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let timeout = Timespec::try_from(nap).ok();
        // A signal or a time-out only means that the caller looks again.
        let _ = poll(&mut fds, timeout.as_ref());
        Ok(())
    }

    /// Wakes a thread that sleeps in [`Worker::sleep`].
    #[doc(alias = "ucp_worker_signal")]
    pub(crate) fn wake(&self) {
        // SAFETY: thread-safe by UCX's documentation; the worker is live.
        unsafe { sys::ucp_worker_signal(self.state().handle.as_ptr()) };
    }

    /// Whether it is the same worker.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The locked state, for operations that talk to UCX.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State>> {
        self.context().refuse_fork()?;
        Ok(self.state())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic while locked leaves the state usable: UCX's calls do not unwind.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for earlier puts to these elements at the peer, so that what is posted next comes
    /// after them.
    pub(super) fn order(&self, endpoint: &Endpoint, elements: &Elements) -> Result<()> {
        if !self.0.unflushed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (touches, full) = {
            let unflushed = endpoint.unflushed();
            (unflushed.touches(elements), unflushed.is_full())
        };
        if touches || full {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Waits for all earlier puts to the peer: what is sent next is seen after them.
    pub(crate) fn settle(&self, endpoint: &Endpoint) -> Result<()> {
        if self.0.unflushed.load(Ordering::Relaxed) && !endpoint.unflushed().is_empty() {
            return self.flush();
        }
        Ok(())
    }

    /// Notes that a put to `elements` was posted on `endpoint`. The state is locked.
    pub(super) fn set_unflushed(
        &self,
        state: &mut State,
        endpoint: &Endpoint,
        elements: &Elements,
    ) {
        self.remember(state, endpoint, |unflushed| unflushed.add(elements));
    }

    /// Notes something that the next flush of `endpoint` has to wait for. The state is locked.
    pub(super) fn remember(
        &self,
        state: &mut State,
        endpoint: &Endpoint,
        what: impl FnOnce(&mut Unflushed),
    ) {
        let mut unflushed = endpoint.unflushed();
        if unflushed.is_empty() {
            state.written.push(endpoint.downgrade());
        }
        what(&mut unflushed);
        self.0.unflushed.store(true, Ordering::Release);
    }

    /// Waits until a new operation of `bytes` may be posted: memory for those in flight is bounded.
    pub(super) fn admit(&self, bytes: usize) -> Result<()> {
        if self.lock()?.has_room(bytes) {
            return Ok(());
        }
        self.wait_for(|state| state.has_room(bytes).then_some(()))
    }
}

impl State {
    /// Progresses once and gives back what has completed.
    fn progress(&mut self) -> bool {
        // SAFETY: the worker is live and locked.
        let events = unsafe { sys::ucp_worker_progress(self.handle.as_ptr()) };
        self.reap();
        if !self.expected.is_empty() {
            self.take_expected();
        }
        events > 0
    }

    /// Frees operations that have completed, oldest first.
    fn reap(&mut self) {
        while let Some(oldest) = self.in_flight.front() {
            match oldest.posted.test() {
                Outcome::Pending => break,
                Outcome::Complete(Ok(())) => {}
                Outcome::Complete(Err(error)) => {
                    self.failure
                        .get_or_insert(error.context("an earlier put or message"));
                }
            }
            if let Some(done) = self.in_flight.pop_front() {
                self.in_flight_bytes -= done.buffer.capacity();
                if let Posted::InFlight(request) = done.posted {
                    self.free(request);
                }
            }
        }
        let mut complete = Vec::new();
        self.orphans
            .retain(|orphan| match (orphan.posted.test(), orphan.posted) {
                (Outcome::Complete(_), Posted::InFlight(request)) => {
                    complete.push(request);
                    false
                }
                _ => true,
            });
        for request in complete {
            self.free(request);
            self.messages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.in_flight.is_empty()
            || (self.in_flight.len() < MAX_IN_FLIGHT
                && self.in_flight_bytes + bytes <= MAX_IN_FLIGHT_BYTES)
    }

    /// Keeps the buffer of an operation nobody waits for until it completes.
    pub(super) fn keep(&mut self, posted: Posted, buffer: Vec<u8>) {
        if matches!(posted, Posted::InFlight(_)) {
            self.in_flight_bytes += buffer.capacity();
            self.in_flight.push_back(InFlight { posted, buffer });
        }
    }

    /// Frees the requests of all that nobody waits for, and keeps the buffers. For the end of the
    /// worker, which warns of requests that it still finds.
    fn give_up(&mut self) {
        for kept in self.in_flight.iter_mut().chain(&mut self.orphans) {
            if let Posted::InFlight(request) = std::mem::replace(&mut kept.posted, Posted::Done) {
                // SAFETY: a request of this worker, which nobody else uses, given up here.
                unsafe { sys::ucp_request_free(request.as_ptr()) };
            }
        }
    }

    /// Keeps the buffer of a message that was given up until UCX is done with it.
    pub(super) fn adopt(&mut self, posted: Posted, buffer: Vec<u8>) {
        self.orphans.push(InFlight { posted, buffer });
    }

    /// Destroys a key that nothing uses any more.
    pub(super) fn destroy(&mut self, key: DroppedKey) {
        // SAFETY: live, of an endpoint of this worker, which is locked; destroyed once.
        unsafe { sys::ucp_rkey_destroy(key.0.as_ptr()) };
    }

    /// Returns a request to UCX; an operation still under way goes on.
    pub(super) fn free(&mut self, request: NonNull<std::ffi::c_void>) {
        // SAFETY: a request of this worker, which is locked, given up by the caller.
        unsafe { sys::ucp_request_free(request.as_ptr()) };
    }

    pub(super) fn raw(&self) -> sys::ucp_worker_h {
        self.handle.as_ptr()
    }
}

/// Parameters of an operation on bytes in ordinary memory.
pub(super) fn host_param() -> sys::ucp_request_param_t {
    sys::ucp_request_param_t {
        op_attr_mask: sys::UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        memory_type: sys::UCS_MEMORY_TYPE_HOST,
        ..sys::ucp_request_param_t::ZEROED
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.context.is_forked() || *self.ending.get_mut() {
            // The parent's, or the end of the process: its buffers stay with its operations, and
            // its context with it.
            std::mem::forget(std::mem::take(&mut state.in_flight));
            std::mem::forget(std::mem::take(&mut state.orphans));
            std::mem::forget(self.context.clone());
            return;
        }
        self.flushes.give_up(state);
        state.give_up();
        // SAFETY: live; endpoints, keys and requests held the Arc that is now gone. Buffers in
        // flight are freed afterwards.
        unsafe { sys::ucp_worker_destroy(state.handle.as_ptr()) };
    }
}

/// Where a worker can be reached: bytes to send to peers by any channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerAddress {
    job: u128,
    /// Of the context whose worker it is.
    context: u64,
    bytes: Vec<u8>,
}

impl WorkerAddress {
    /// Bytes with a header and a checksum.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = self.context.to_le_bytes().to_vec();
        body.extend_from_slice(&self.bytes);
        seal::seal(Kind::Address, self.job, &body)
    }

    /// The address that [`WorkerAddress::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] unless every byte is as it was written, by the same UCX version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (job, body) = seal::open(Kind::Address, bytes)?;
        let (context, address) = body
            .split_first_chunk()
            .ok_or_else(|| Error::new(ErrorKind::InvalidKey, "not a valid worker address"))?;
        Ok(Self {
            job,
            context: u64::from_le_bytes(*context),
            bytes: address.to_vec(),
        })
    }
}
