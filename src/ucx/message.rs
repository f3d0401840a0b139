//! Messages between workers, by tag: those that are waited for, and `Message`, one under way.

#![expect(unsafe_code, reason = "calls UCX")]

use super::endpoint::Endpoint;
use super::request::Posted;
use super::status::check;
use super::worker::{State, Worker, host_param};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Patience;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use ucx_sys as sys;

/// A message that is being sent or received. It owns the buffer that UCX reads or writes;
/// dropping or forgetting it early is harmless: it goes on with nobody to look.
#[derive(Debug)]
pub(crate) struct Message {
    worker: Worker,
    stage: Stage,
    /// A message to receive has its bytes here when it is complete.
    buffer: Vec<u8>,
    /// Not known before for one that is received by tag.
    len: Option<usize>,
    direction: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Send,
    Receive,
}

/// Invariant: the request has not been freed, and reads or writes the message's buffer.
#[derive(Debug)]
enum Stage {
    UnderWay(NonNull<c_void>),
    Complete(Result<()>),
}

// SAFETY: a request may be tested and freed from any thread under its worker's lock.
unsafe impl Send for Message {}

impl Message {
    fn new(
        worker: &Worker,
        posted: Posted,
        buffer: Vec<u8>,
        len: Option<usize>,
        direction: Direction,
    ) -> Self {
        let mut this = Self {
            worker: worker.clone(),
            stage: match posted {
                Posted::InFlight(request) => Stage::UnderWay(request),
                Posted::Done => Stage::Complete(Ok(())),
            },
            buffer,
            len,
            direction,
        };
        match posted {
            Posted::Done => this.fill(len.unwrap_or(0)),
            Posted::InFlight(_) => worker.count_message(),
        }
        this
    }

    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Whether it is complete, well or not. Does not progress the worker.
    pub(crate) fn is_done(&mut self) -> Result<bool> {
        if matches!(self.stage, Stage::Complete(_)) {
            return Ok(true);
        }
        let worker = self.worker.clone();
        let mut state = worker.lock()?;
        Ok(self.test(&mut state))
    }

    /// Waits for it. Returns what has arrived, or the buffer that was sent.
    ///
    /// # Errors
    /// How it failed; or what ended the wait, and then it goes on.
    pub(crate) fn wait(&mut self) -> Result<Vec<u8>> {
        self.wait_done()?;
        match &mut self.stage {
            Stage::Complete(outcome) => {
                std::mem::replace(outcome, Ok(())).map(|()| std::mem::take(&mut self.buffer))
            }
            Stage::UnderWay(_) => Err(Error::new(ErrorKind::Ucx, "a message without an end")),
        }
    }

    /// Waits until it is complete, well or not.
    ///
    /// # Errors
    /// What ended the wait, and then it goes on.
    pub(crate) fn wait_done(&mut self) -> Result<()> {
        if matches!(self.stage, Stage::Complete(_)) {
            return Ok(());
        }
        let worker = self.worker.clone();
        worker.wait_for(|state| self.test(state).then_some(()))
    }

    /// Whether it is complete; frees the request if so.
    fn test(&mut self, state: &mut State) -> bool {
        let Stage::UnderWay(request) = self.stage else {
            return true;
        };
        let (status, len) = match self.direction {
            Direction::Receive => {
                let mut info = sys::ucp_tag_recv_info_t::ZEROED;
                // SAFETY: the request is live, by the invariant, and the worker locked.
                let status =
                    unsafe { sys::ucp_tag_recv_request_test(request.as_ptr(), &raw mut info) };
                (status, info.length)
            }
            // SAFETY: as above.
            Direction::Send => (
                unsafe { sys::ucp_request_check_status(request.as_ptr()) },
                0,
            ),
        };
        if status == sys::UCS_INPROGRESS {
            return false;
        }
        state.free(request);
        state.messages.fetch_sub(1, Ordering::Relaxed);
        let outcome = check(self.call(), status);
        if outcome.is_ok() {
            self.fill(self.len.unwrap_or(len));
        }
        self.stage = Stage::Complete(outcome);
        true
    }

    /// UCX has written `len` bytes.
    fn fill(&mut self, len: usize) {
        if self.direction == Direction::Receive {
            let len = len.min(self.buffer.capacity());
            // SAFETY: complete, so UCX has written so many bytes.
            unsafe { self.buffer.set_len(len) };
        }
    }

    /// Tells UCX that nobody waits for this receive any more; it may end well all the same.
    pub(crate) fn cancel(&self) {
        let Stage::UnderWay(request) = self.stage else {
            return;
        };
        if let Ok(state) = self.worker.lock() {
            // SAFETY: live, by the invariant, and of this worker, which is locked.
            unsafe { sys::ucp_request_cancel(state.raw(), request.as_ptr()) };
        }
    }

    fn call(&self) -> &'static str {
        match self.direction {
            Direction::Send => "ucp_tag_send_nbx",
            Direction::Receive => "ucp_tag_recv_nbx",
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let Stage::UnderWay(request) = self.stage else {
            return;
        };
        let buffer = std::mem::take(&mut self.buffer);
        let worker = &self.worker;
        let Ok(mut state) = worker.lock() else {
            std::mem::forget(buffer); // Forked: the parent's.
            return;
        };
        state.adopt(Posted::InFlight(request), buffer);
    }
}

impl Worker {
    /// Sends `message` under `tag`; returns when UCX has handed it on, so that it arrives whether
    /// or not this side ever progresses its worker again.
    pub(crate) fn send(&self, to: &Endpoint, tag: u64, message: Vec<u8>) -> Result<()> {
        self.post_send(to, tag, message)?.wait().map(drop)
    }

    /// Starts to send `message` under `tag`. It arrives if this side progresses its worker, also
    /// if what is returned is dropped.
    pub(crate) fn post_send(&self, to: &Endpoint, tag: u64, message: Vec<u8>) -> Result<Message> {
        let posted = {
            let _state = self.lock()?;
            let param = host_param();
            // SAFETY: the endpoint is live and of this worker, which is locked; the Message keeps
            // the bytes until UCX is done with them.
            let result = unsafe {
                sys::ucp_tag_send_nbx(
                    to.raw(),
                    message.as_ptr().cast(),
                    message.len(),
                    tag,
                    &raw const param,
                )
            };
            Posted::new("ucp_tag_send_nbx", result)?
        };
        Ok(Message::new(self, posted, message, None, Direction::Send))
    }

    /// Receives the next message with exactly `tag`, of at most `limit` bytes; waits for it.
    pub(crate) fn receive(
        &self,
        tag: u64,
        limit: usize,
        patience: Patience<'_>,
    ) -> Result<Vec<u8>> {
        let mut message = self.post_receive(tag, limit)?;
        let received = self
            .wait_with(patience, |state| message.test(state).then_some(()))
            .and_then(|()| message.wait());
        if received.is_err() {
            message.cancel();
        }
        received
    }

    /// Starts to receive the next message with exactly `tag`, of at most `limit` bytes.
    pub(crate) fn post_receive(&self, tag: u64, limit: usize) -> Result<Message> {
        let mut buffer = Vec::<u8>::with_capacity(limit);
        let posted = {
            let state = self.lock()?;
            let mut param = host_param();
            // Always a request: its length can then be asked for in one way.
            param.op_attr_mask |= sys::UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
            // SAFETY: the worker is live and locked; the Message keeps the buffer until UCX is
            // done with it.
            let result = unsafe {
                sys::ucp_tag_recv_nbx(
                    state.raw(),
                    buffer.as_mut_ptr().cast(),
                    limit,
                    tag,
                    u64::MAX,
                    &raw const param,
                )
            };
            Posted::new("ucp_tag_recv_nbx", result)?
        };
        if matches!(posted, Posted::Done) {
            return Err(Error::new(ErrorKind::Ucx, "ucp_tag_recv_nbx: no request"));
        }
        Ok(Message::new(self, posted, buffer, None, Direction::Receive))
    }

    /// Starts to receive the next message with these tags, and gives its tag; None if there is
    /// none. Of one longer than `limit` the end is lost.
    pub(crate) fn take_message(&self, tags: Tags, limit: usize) -> Result<Option<(u64, Message)>> {
        let taken = self.lock()?.take(tags, limit)?;
        Ok(taken.map(|taken| self.message_of(taken)))
    }

    /// As [`Worker::take_message`]; waits until there is one, or until `ready` gives something.
    pub(crate) fn wait_message<R>(
        &self,
        tags: Tags,
        limit: usize,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<Result<R, (u64, Message)>> {
        let found = self.wait_for(|state| {
            if let Some(value) = ready() {
                return Some(Ok(Ok(value)));
            }
            Some(Ok(Err(match state.take(tags, limit) {
                Ok(taken) => taken?,
                Err(error) => return Some(Err(error)),
            })))
        })??;
        Ok(found.map_err(|taken| self.message_of(taken)))
    }

    /// The tag and the length of the first message with these tags, which stays where it is.
    pub(crate) fn look_for_message(&self, tags: Tags) -> Result<Option<(u64, usize)>> {
        let state = self.lock()?;
        Ok(state.look(tags))
    }

    /// As [`Worker::look_for_message`]; waits until there is one, or until `ready` gives something.
    pub(crate) fn wait_look<R>(
        &self,
        tags: Tags,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<Result<R, (u64, usize)>> {
        self.wait_for(|state| ready().map(Ok).or_else(|| state.look(tags).map(Err)))
    }

    fn message_of(&self, taken: Taken) -> (u64, Message) {
        let Taken {
            tag,
            posted,
            buffer,
            len,
        } = taken;
        let message = Message::new(self, posted, buffer, Some(len), Direction::Receive);
        (tag, message)
    }
}

/// A message that is to be received as soon as there is one: whoever progresses the worker takes
/// it, the one that has waited longest first. Dropping it gives that up, or loses the message.
#[derive(Debug)]
pub(crate) struct Expected {
    worker: Worker,
    slot: Arc<Slot>,
}

/// Where a message that was expected is put.
#[derive(Debug)]
pub(super) struct Slot {
    tags: Tags,
    arrived: Mutex<Option<Result<Arrived>>>,
}

#[derive(Debug)]
enum Arrived {
    /// From this process itself.
    Here(u64, Vec<u8>),
    Taken(Taken),
}

impl Slot {
    fn put(&self, arrived: Result<Arrived>) {
        *self.lock() = Some(arrived);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<Arrived>>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expected {
    /// The message and its tag, once there is one. Does not progress the worker.
    pub(crate) fn look(&self) -> Result<Option<(u64, Message)>> {
        let arrived = self.slot.lock().take();
        arrived
            .map(|arrived| Ok(self.message(arrived?)))
            .transpose()
    }

    /// Waits until there is one.
    pub(crate) fn wait(&self) -> Result<(u64, Message)> {
        let arrived = self.worker.wait_for(|_| self.slot.lock().take())?;
        Ok(self.message(arrived?))
    }

    fn message(&self, arrived: Arrived) -> (u64, Message) {
        match arrived {
            Arrived::Taken(taken) => self.worker.message_of(taken),
            Arrived::Here(tag, bytes) => {
                let message = Message {
                    worker: self.worker.clone(),
                    stage: Stage::Complete(Ok(())),
                    len: Some(bytes.len()),
                    buffer: bytes,
                    direction: Direction::Receive,
                };
                (tag, message)
            }
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        if let Ok(mut state) = self.worker.lock() {
            state.forget(&self.slot);
        }
        // As a message that is dropped: UCX may still write to its buffer.
        let lost = self.look();
        drop(lost);
    }
}

impl Worker {
    /// From now on the next message with these tags is taken as soon as this worker is progressed.
    pub(crate) fn expect(&self, tags: Tags) -> Result<Expected> {
        let slot = Arc::new(Slot {
            tags,
            arrived: Mutex::default(),
        });
        let mut state = self.lock()?;
        state.expected.push_back(slot.clone());
        state.messages.fetch_add(1, Ordering::Relaxed);
        drop(state);
        Ok(Expected {
            worker: self.clone(),
            slot,
        })
    }

    /// Gives a message of this process to whoever has expected it longest; gives it back if nobody
    /// has.
    pub(crate) fn offer(&self, tag: u64, bytes: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let mut state = self.lock()?;
        let fits = |slot: &Arc<Slot>| slot.tags.fit(tag);
        let Some(at) = state.expected.iter().position(fits) else {
            return Ok(Some(bytes));
        };
        if let Some(slot) = state.expected.remove(at) {
            state.messages.fetch_sub(1, Ordering::Relaxed);
            slot.put(Ok(Arrived::Here(tag, bytes)));
        }
        Ok(None)
    }
}

/// Tags that agree with `tag` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    pub(crate) tag: u64,
    pub(crate) mask: u64,
}

impl Tags {
    pub(crate) const ALL: Self = Self { tag: 0, mask: 0 };

    /// Whether `tag` is one of them, as UCX sees it.
    pub(crate) fn fit(self, tag: u64) -> bool {
        (tag ^ self.tag) & self.mask == 0
    }
}

/// A message that is being received.
#[derive(Debug)]
struct Taken {
    tag: u64,
    posted: Posted,
    /// What it is written to, of this length.
    buffer: Vec<u8>,
    len: usize,
}

// SAFETY: as for Message, which it becomes.
unsafe impl Send for Taken {}

impl State {
    /// Takes the messages that are expected.
    pub(super) fn take_expected(&mut self) {
        let mut at = 0;
        while let Some(slot) = self.expected.get(at) {
            match self.take(slot.tags, usize::MAX) {
                Ok(None) => {
                    at += 1;
                    continue;
                }
                Ok(Some(taken)) => slot.put(Ok(Arrived::Taken(taken))),
                Err(error) => slot.put(Err(error)),
            }
            self.expected.remove(at);
            self.messages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Nobody expects that message any more.
    fn forget(&mut self, slot: &Arc<Slot>) {
        if let Some(at) = self.expected.iter().position(|it| Arc::ptr_eq(it, slot)) {
            self.expected.remove(at);
            self.messages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Starts to receive the first message with these tags.
    fn take(&self, tags: Tags, limit: usize) -> Result<Option<Taken>> {
        let mut info = sys::ucp_tag_recv_info_t::ZEROED;
        let Tags { tag, mask } = tags;
        // SAFETY: the worker is live and locked; info is written if there is a message, which is
        // then taken out and must be received below.
        let message = unsafe { sys::ucp_tag_probe_nb(self.raw(), tag, mask, 1, &raw mut info) };
        if message.is_null() {
            return Ok(None);
        }
        let len = info.length.min(limit);
        let mut buffer = Vec::<u8>::with_capacity(len);
        let param = host_param();
        // SAFETY: the worker is live and locked; the message is that of the probe; whoever gets
        // the buffer keeps it until UCX is done with it.
        let result = unsafe {
            sys::ucp_tag_msg_recv_nbx(
                self.raw(),
                buffer.as_mut_ptr().cast(),
                len,
                message,
                &raw const param,
            )
        };
        let posted = Posted::new("ucp_tag_msg_recv_nbx", result)?;
        Ok(Some(Taken {
            tag: info.sender_tag,
            posted,
            buffer,
            len,
        }))
    }

    /// The tag and the length of the first message with these tags.
    fn look(&self, tags: Tags) -> Option<(u64, usize)> {
        let mut info = sys::ucp_tag_recv_info_t::ZEROED;
        let Tags { tag, mask } = tags;
        // SAFETY: the worker is live and locked; info is written if there is a message, which
        // stays in the queue.
        let message = unsafe { sys::ucp_tag_probe_nb(self.raw(), tag, mask, 0, &raw mut info) };
        (!message.is_null()).then_some((info.sender_tag, info.length))
    }
}
