//! `Request`: an operation that goes on while the program does something else.
//!
//! A request owns the memory that its operation uses, so it may be dropped or forgotten at any
//! time.

use super::Core;
#[cfg(doc)]
use super::{Team, World};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Concern;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// An operation that is under way, and its result: made by
/// [`GlobalArray::get_async`](crate::GlobalArray::get_async), [`Team::isend`] and their like.
///
/// What is done before it is done may come before it or after it, also for the same element.
///
/// Any number may be outstanding, and they may be waited for in any order. Dropping or forgetting
/// one is harmless: the operation goes on, its result is lost.
///
/// It is a [`Future`], too. No executor is needed: [`Team::block_on`] runs one. Under another
/// executor it is polled again and again until it is done.
#[must_use = "the result is inside: call wait()"]
pub struct Request<'a, R> {
    state: State<'a, R>,
    core: &'a Core,
    /// Whose failure ends it.
    concern: Concern,
    /// When it was first found not done.
    since: Option<Instant>,
}

enum State<'a, R> {
    Done(Result<R>),
    Waiting(Box<dyn Pending<R> + 'a>),
    /// The result has been given.
    Taken,
}

/// What a request waits for.
pub(crate) trait Pending<R>: Send {
    /// Goes on as far as possible; whether `wait` would not wait.
    fn is_done(&mut self) -> Result<bool>;
    fn wait(self: Box<Self>) -> Result<R>;
}

impl<'a, R> Request<'a, R> {
    pub(crate) fn done(core: &'a Core, result: R) -> Self {
        Self {
            state: State::Done(Ok(result)),
            core,
            concern: Concern::Nobody,
            since: None,
        }
    }

    pub(crate) fn waiting(core: &'a Core, pending: impl Pending<R> + 'a) -> Self {
        Self {
            state: State::Waiting(Box::new(pending)),
            core,
            concern: Concern::Nobody,
            since: None,
        }
    }

    /// The same, ended by the failure of those.
    pub(super) fn with(self, concern: Concern) -> Self {
        Self { concern, ..self }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// As the operation that waits.
    pub fn wait(self) -> Result<R> {
        let _concerned = self.core.limits().concerned(|| self.concern.clone());
        match self.state {
            State::Done(result) => result,
            State::Waiting(pending) => pending.wait(),
            State::Taken => Err(taken()),
        }
    }

    /// Whether the result is there; helps it on, but does not wait.
    ///
    /// # Errors
    /// As the operation, also when it has taken longer than the [time limit](World#time-limit).
    pub fn is_done(&mut self) -> Result<bool> {
        let State::Waiting(pending) = &mut self.state else {
            return Ok(true);
        };
        let _concerned = self.core.limits().concerned(|| self.concern.clone());
        if pending.is_done()? {
            return Ok(true);
        }
        self.core.check()?;
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        match self.core.timeout() {
            Some(limit) if waited >= limit => Err(Error::new(
                ErrorKind::Timeout,
                format!("a request has no answer for {limit:?}"),
            )),
            _ => Ok(false),
        }
    }
}

#[cold]
fn taken() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "the request's result was taken before",
    )
}

impl<R> Unpin for Request<'_, R> {}

impl<R> Future for Request<'_, R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.is_done() {
            Ok(false) => {
                // Nobody else knows when to look again.
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(true) => Poll::Ready(match std::mem::replace(&mut self.state, State::Taken) {
                State::Done(result) => result,
                State::Waiting(pending) => pending.wait(),
                State::Taken => Err(taken()),
            }),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<R> fmt::Debug for Request<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Done(_) => "done",
            State::Waiting(_) => "waiting",
            State::Taken => "taken",
        };
        f.debug_tuple("Request").field(&state).finish()
    }
}
