//! Flushes: after one, what was put before it began is in its place. `PutTicket`: whether one put is.

#![expect(unsafe_code, reason = "calls UCX")]

use super::endpoint::{Endpoint, WeakEndpoint};
use super::request::{Outcome, Posted};
use super::worker::{State, Worker};
use crate::error::{Error, Result};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use ucx_sys as sys;

/// The flushes of a worker: numbered, one at a time.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// Locked by the thread that flushes: another that finds nothing to flush has to wait for it.
    /// One that nobody waits for yet stays here.
    under_way: Mutex<Option<Flush>>,
    /// The number of the last that began. Changed with the worker's state locked.
    begun: AtomicU64,
    /// The number of the last that ended well.
    ended: AtomicU64,
    /// The last that found a failure, and what that was: for tickets from before it.
    failed: Mutex<Option<(u64, Error)>>,
}

/// A flush under way, endpoint by endpoint: flushing the worker would also wait for connections
/// over which nothing was written, until their peers progress them.
#[derive(Debug)]
struct Flush {
    number: u64,
    /// Not kept: the worker keeps this.
    endpoints: Vec<WeakEndpoint>,
    requests: Vec<NonNull<c_void>>,
    outcome: Result<()>,
}

// SAFETY: requests may be tested and freed from any thread under their worker's lock.
unsafe impl Send for Flush {}

impl Flush {
    /// Whether it is complete, well or not.
    fn test(&mut self, state: &mut State) -> bool {
        let outcome = &mut self.outcome;
        self.requests
            .retain(|&request| match Posted::InFlight(request).test() {
                Outcome::Pending => true,
                Outcome::Complete(result) => {
                    state.free(request);
                    // All are waited for, also after the first failure.
                    if outcome.is_ok() {
                        *outcome = result;
                    }
                    false
                }
            });
        self.requests.is_empty()
    }
}

impl Flushes {
    fn lock(&self) -> MutexGuard<'_, Option<Flush>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a flush that began after number `epoch` has ended.
    fn is_after(&self, epoch: u64) -> bool {
        self.ended.load(Ordering::Acquire) > epoch
    }

    /// The failure of a flush that began after number `epoch`.
    fn failed_after(&self, epoch: u64) -> Result<()> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failed {
            Some((number, error)) if *number > epoch => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Frees what is under way. For the end of the worker.
    pub(super) fn give_up(&mut self, state: &mut State) {
        let under_way = self
            .under_way
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for request in under_way
            .take()
            .into_iter()
            .flat_map(|flush| flush.requests)
        {
            state.free(request);
        }
    }
}

impl Worker {
    /// Waits until all puts posted on this worker are complete at their targets. Atomics are when
    /// they return.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`](crate::ErrorKind::Ucx), or whatever ended the wait.
    #[doc(alias = "ucp_ep_flush_nbx")]
    pub fn flush(&self) -> Result<()> {
        self.context().refuse_fork()?;
        if !self.is_unflushed() {
            return Ok(());
        }
        let mut under_way = self.0.flushes.lock();
        let earlier = under_way.take().map_or(Ok(()), |flush| self.finish(flush));
        if !self.is_unflushed() {
            return earlier;
        }
        let (flush, _kept) = self.begin_flush()?;
        let flushed = self.finish(flush);
        earlier.and(flushed)
    }

    fn is_unflushed(&self) -> bool {
        self.0.unflushed.load(Ordering::Acquire)
    }

    /// Begins one. None is under way. The endpoints are locked by nobody here.
    fn begin_flush(&self) -> Result<(Flush, Vec<Endpoint>)> {
        let mut state = self.lock()?;
        let written = std::mem::take(&mut state.written);
        let live: Vec<Endpoint> = written.iter().filter_map(WeakEndpoint::upgrade).collect();
        let mut flush = Flush {
            number: self.0.flushes.begun.fetch_add(1, Ordering::AcqRel) + 1,
            endpoints: written,
            requests: Vec::with_capacity(live.len()),
            outcome: Ok(()),
        };
        let param = sys::ucp_request_param_t::ZEROED;
        for endpoint in &live {
            endpoint.unflushed().begin();
            // SAFETY: the endpoint is live and of this worker, which is locked.
            let result = unsafe { sys::ucp_ep_flush_nbx(endpoint.raw(), &raw const param) };
            match Posted::new("ucp_ep_flush_nbx", result) {
                Ok(Posted::InFlight(request)) => flush.requests.push(request),
                Ok(Posted::Done) => {}
                Err(error) => flush.outcome = Err(error),
            }
        }
        Ok((flush, live))
    }

    /// Waits for a flush, and ends it.
    fn finish(&self, mut flush: Flush) -> Result<()> {
        let waited = self.wait_for(|state| flush.test(state).then_some(()));
        if waited.is_err() {
            let mut state = self.state();
            for request in flush.requests.drain(..) {
                state.free(request);
            }
            flush.outcome = waited;
        }
        self.end_flush(flush)
    }

    /// Notes how it ended.
    fn end_flush(&self, flush: Flush) -> Result<()> {
        let live: Vec<Endpoint> = flush
            .endpoints
            .iter()
            .filter_map(WeakEndpoint::upgrade)
            .collect();
        let mut state = self.state();
        for endpoint in &live {
            let mut unflushed = endpoint.unflushed();
            for key in unflushed.end(flush.outcome.is_ok()) {
                state.destroy(key);
            }
            // Something may have been posted meanwhile, too.
            if !unflushed.is_empty() {
                state.written.push(endpoint.downgrade());
            }
        }
        let outcome = flush.outcome.and(state.failure.take().map_or(Ok(()), Err));
        match &outcome {
            Ok(()) => self.0.flushes.ended.store(flush.number, Ordering::Release),
            Err(error) => {
                let failed = self.0.flushes.failed.lock();
                *failed.unwrap_or_else(PoisonError::into_inner) =
                    Some((flush.number, error.clone()));
            }
        }
        if state.written.is_empty() {
            self.0.unflushed.store(false, Ordering::Release);
        }
        // Dropping an endpoint takes the lock.
        drop(state);
        outcome
    }

    /// Whether what was put before flush `epoch + 1` began is in its place: if not, flushes a
    /// step further. Does not wait.
    fn flush_on(&self, epoch: u64) -> Result<bool> {
        let flushes = &self.0.flushes;
        flushes.failed_after(epoch)?;
        if flushes.is_after(epoch) {
            return Ok(true);
        }
        self.progress()?;
        let mut under_way = match flushes.under_way.try_lock() {
            Ok(under_way) => under_way,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // Another thread waits for one.
            Err(TryLockError::WouldBlock) => return Ok(flushes.is_after(epoch)),
        };
        if under_way.is_none() {
            if flushes.is_after(epoch) || !self.is_unflushed() {
                // Another thread's flush may have met the failure meanwhile.
                return flushes.failed_after(epoch).map(|()| true);
            }
            let (flush, live) = self.begin_flush()?;
            drop(live);
            *under_way = Some(flush);
        }
        if let Some(mut flush) = under_way.take() {
            let complete = flush.test(&mut *self.lock()?);
            if complete {
                self.end_flush(flush)?;
            } else {
                *under_way = Some(flush);
            }
        }
        Ok(flushes.is_after(epoch))
    }
}

/// Tells when a put is in its place. Dropping or forgetting it is harmless: the put goes on.
#[derive(Debug)]
pub struct PutTicket {
    /// None if it was at once, in mapped memory.
    put: Option<(Endpoint, u64)>,
}

impl PutTicket {
    /// Of what was just put through `endpoint`.
    pub(super) fn new(endpoint: Option<&Endpoint>) -> Self {
        Self {
            put: endpoint.map(|endpoint| {
                let begun = &endpoint.worker().0.flushes.begun;
                (endpoint.clone(), begun.load(Ordering::Acquire))
            }),
        }
    }

    /// Whether the values are in their place. Does not wait; progresses the worker.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`](crate::ErrorKind::Ucx) if this or an earlier put failed.
    pub fn is_done(&self) -> Result<bool> {
        match &self.put {
            Some((endpoint, epoch)) => endpoint.worker().flush_on(*epoch),
            None => Ok(true),
        }
    }

    /// Waits until the values are in their place. Costs a [flush](Worker::flush), unless one that
    /// began after the put has ended meanwhile.
    ///
    /// # Errors
    /// As for [`Worker::flush`].
    pub fn wait(self) -> Result<()> {
        // For memory that is mapped: earlier stores before later ones.
        fence(Ordering::SeqCst);
        match &self.put {
            Some((endpoint, epoch)) => {
                let worker = endpoint.worker();
                worker.0.flushes.failed_after(*epoch)?;
                if !worker.0.flushes.is_after(*epoch) {
                    worker.flush()?;
                }
                // Another thread's flush may have met the failure meanwhile.
                worker.0.flushes.failed_after(*epoch)
            }
            None => Ok(()),
        }
    }
}
