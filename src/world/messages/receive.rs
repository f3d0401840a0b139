//! Messages that have been found, and those that are waited for in the background.

use super::outbox::{Header, Incoming};
use super::{Envelope, LABEL, OUTSIDE, label_of_elements, name_in, values_of};
use crate::element::{self, Arriving, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{Expected, Message, Pump};
use crate::world::collective::decode;
use crate::world::{Core, Pending, Races};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A message that has been found.
pub(super) struct Letter {
    pub(super) envelope: Envelope,
    label: [u8; LABEL],
    /// Its sender's, in a job that looks for races.
    clock: Vec<u8>,
    content: Content,
}

enum Content {
    Here(Vec<u8>),
    /// What its sender's outbox will bring.
    Outside(Incoming),
}

/// A message's bytes, taken apart.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) label: [u8; LABEL],
    pub(super) clock: Vec<u8>,
    pub(super) inside: Inside,
}

#[derive(Debug)]
pub(super) enum Inside {
    Content(Vec<u8>),
    /// Where the content is.
    Header(Header),
}

impl Parts {
    /// Of a message with this tag, in a job whose clocks have so many bytes.
    ///
    /// # Errors
    /// If it is too short, or its header is none.
    pub(super) fn of(tag: u64, mut bytes: Vec<u8>, clock: usize) -> Result<Self> {
        let no_end = || Error::new(ErrorKind::Ucx, "a message without an end");
        let (content, &label) = bytes.split_last_chunk::<LABEL>().ok_or_else(no_end)?;
        let len = content.len().checked_sub(clock).ok_or_else(no_end)?;
        let (content, clock) = content.split_at(len);
        let clock = clock.to_vec();
        let inside = if tag & OUTSIDE == 0 {
            bytes.truncate(len);
            Inside::Content(bytes)
        } else {
            let header: Header = decode(content)?;
            header.check(Envelope::new(tag, 0).source)?;
            Inside::Header(header)
        };
        Ok(Self {
            label,
            clock,
            inside,
        })
    }
}

impl Letter {
    pub(super) fn new(core: &Core, tag: u64, bytes: Vec<u8>) -> Result<Self> {
        let Envelope { source, .. } = Envelope::new(tag, 0);
        core.check_rank("a message from", source)?;
        let clock = core.races().map_or(0, Races::bytes);
        let Parts {
            label,
            clock,
            inside,
        } = Parts::of(tag, bytes, clock)?;
        let content = match inside {
            Inside::Content(bytes) => Content::Here(bytes),
            Inside::Header(header) => Content::Outside(Incoming::start(core, source, &header)?),
        };
        let len = match &content {
            Content::Here(bytes) => bytes.len(),
            Content::Outside(incoming) => incoming.len(),
        };
        Ok(Self {
            envelope: Envelope::new(tag, len),
            label,
            clock,
            content,
        })
    }

    /// What its sender had done comes before what this rank does now.
    pub(super) fn hear(&self, core: &Core) {
        if let Some(races) = core.races() {
            races.hear_bytes(&self.clock);
        }
    }

    /// Whether it has in it what is expected; if not it is lost.
    pub(super) fn check(self, expected: [u8; LABEL]) -> Result<Self> {
        if self.label == expected {
            return Ok(self);
        }
        let Envelope { source, tag, .. } = self.envelope;
        Err(Error::new(
            ErrorKind::Mismatch,
            format!(
                "rank {source} sent {} with tag {tag}, and {} was to be received",
                name_in(&self.label),
                name_in(&expected)
            ),
        )
        .with_peer(source))
    }

    pub(super) fn into_values<T: Element>(self, core: &Core) -> Result<Vec<T>> {
        match self.content {
            Content::Here(bytes) => values_of(&bytes),
            Content::Outside(mut incoming) => {
                let mut values = Arriving::with_bytes(incoming.len());
                incoming.wait(core, values.bits())?;
                values.into_values()
            }
        }
    }

    /// Into `to`, which must have its length.
    pub(super) fn into_slice<T: Element>(self, core: &Core, to: &mut [T]) -> Result<()> {
        let Envelope { source, tag, bytes } = self.envelope;
        if bytes != size_of_val(to) {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!(
                    "rank {source} sent {} elements with tag {tag}, and {} were to be received",
                    bytes / size_of::<T>(),
                    to.len()
                ),
            )
            .with_peer(source));
        }
        match (self.content, element::bits_mut(to)) {
            (Content::Here(bytes), Some(bits)) => element::write_bytes(bits, 0, &bytes),
            (Content::Outside(mut incoming), Some(bits)) => {
                incoming.wait(core, bits)?;
            }
            (content, None) => {
                let letter = Self { content, ..self };
                to.copy_from_slice(&letter.into_values::<T>(core)?);
            }
        }
        Ok(())
    }

    pub(super) fn into_bytes(self, core: &Core) -> Result<Vec<u8>> {
        match self.content {
            Content::Here(bytes) => Ok(bytes),
            Content::Outside(mut incoming) => {
                let mut all = vec![0_u8; incoming.len()];
                incoming.wait(core, &mut all)?;
                Ok(all)
            }
        }
    }
}

/// A message that is received while this process does something else: whatever it waits for, and
/// when the request is looked at.
pub(super) struct Receive<T: Element> {
    core: Arc<Core>,
    stage: Mutex<Stage<T>>,
    beside: Beside<T>,
}

/// What a message needs beside its place.
struct Beside<T> {
    /// Its sender's clock, heard when the request is found to be done.
    clock: OnceLock<Vec<u8>>,
    /// Where its values go, if they fit.
    buffer: Mutex<Vec<T>>,
}

impl<T> Beside<T> {
    fn new(buffer: Vec<T>) -> Self {
        Self {
            clock: OnceLock::new(),
            buffer: Mutex::new(buffer),
        }
    }

    fn take_buffer(&self) -> Vec<T> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut buffer)
    }
}

enum Stage<T: Element> {
    Expected(Expected),
    UnderWay(u64, Message),
    Arriving(Envelope, Incoming, Arriving<T>),
    Complete(Result<(Vec<T>, Envelope)>),
    Taken,
}

impl<T: Element> Receive<T> {
    /// Its values go to `buffer`, if they fit.
    pub(super) fn new(core: &Arc<Core>, expected: Expected, buffer: Vec<T>) -> Arc<Self> {
        Self::with(core, Stage::Expected(expected), Beside::new(buffer))
    }

    /// Of a message that is there.
    pub(super) fn of(core: &Arc<Core>, letter: Letter, buffer: Vec<T>) -> Arc<Self> {
        let beside = Beside::new(buffer);
        let stage = Stage::of(Ok(letter), &beside);
        Self::with(core, stage, beside)
    }

    fn with(core: &Arc<Core>, stage: Stage<T>, beside: Beside<T>) -> Arc<Self> {
        let this = Arc::new(Self {
            core: core.clone(),
            stage: Mutex::new(stage),
            beside,
        });
        let pump: Arc<dyn Pump> = this.clone();
        core.worker.add_pump(Arc::downgrade(&pump));
        this
    }

    /// As [`Letter::hear`].
    fn hear(&self) {
        if let (Some(races), Some(clock)) = (self.core.races(), self.beside.clock.get()) {
            races.hear_bytes(clock);
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage<T>> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Element> Stage<T> {
    /// Keeps the sender's clock.
    fn of(mut letter: Result<Letter>, beside: &Beside<T>) -> Self {
        if let Ok(letter) = &mut letter {
            beside
                .clock
                .get_or_init(|| std::mem::take(&mut letter.clock));
        }
        let letter = letter.and_then(|letter| letter.check(label_of_elements::<T>()));
        match letter {
            Ok(Letter {
                envelope,
                content: Content::Outside(incoming),
                ..
            }) => {
                let values = Arriving::in_buffer(beside.take_buffer(), incoming.len());
                Self::Arriving(envelope, incoming, values)
            }
            Ok(Letter {
                envelope,
                content: Content::Here(bytes),
                ..
            }) => {
                let mut values = Arriving::in_buffer(beside.take_buffer(), bytes.len());
                values.write(0, &bytes);
                Self::Complete(values.into_values().map(|values| (values, envelope)))
            }
            Err(error) => Self::Complete(Err(error)),
        }
    }

    /// Goes on as far as that is possible without waiting; whether it is complete.
    fn advance(&mut self, core: &Core, beside: &Beside<T>) -> Result<bool> {
        loop {
            let next = match self {
                Self::Expected(expected) => match expected.look()? {
                    Some((tag, message)) => Self::UnderWay(tag, message),
                    None => return Ok(false),
                },
                Self::UnderWay(tag, message) => {
                    if !message.is_done()? {
                        return Ok(false);
                    }
                    let bytes = message.wait()?;
                    core.has_received(*tag);
                    Self::of(Letter::new(core, *tag, bytes), beside)
                }
                Self::Arriving(envelope, incoming, values) => {
                    if !incoming.step(|at, bytes| values.write(at, bytes)) {
                        return Ok(false);
                    }
                    let values = std::mem::replace(values, Arriving::with_bytes(0)).into_values();
                    Self::Complete(values.map(|values| (values, *envelope)))
                }
                Self::Complete(_) | Self::Taken => return Ok(true),
            };
            *self = next;
        }
    }

    fn wait(self, core: &Core, beside: &Beside<T>) -> Result<(Vec<T>, Envelope)> {
        match self {
            Self::Expected(expected) => {
                let (tag, message) = expected.wait()?;
                Self::UnderWay(tag, message).wait(core, beside)
            }
            Self::UnderWay(tag, mut message) => {
                let bytes = message.wait()?;
                core.has_received(tag);
                let letter = Letter::new(core, tag, bytes);
                Self::of(letter, beside).wait(core, beside)
            }
            Self::Arriving(envelope, mut incoming, mut values) => {
                incoming.wait(core, values.bits())?;
                Ok((values.into_values()?, envelope))
            }
            Self::Complete(result) => result,
            Self::Taken => Err(Error::new(
                ErrorKind::InvalidArgument,
                "the message was taken before",
            )),
        }
    }
}

impl<T: Element> Pump for Receive<T> {
    fn pump(&self) -> bool {
        // Else its own thread is at it.
        if let Ok(mut stage) = self.stage.try_lock()
            && let Err(error) = stage.advance(&self.core, &self.beside)
        {
            *stage = Stage::Complete(Err(error));
        }
        false
    }
}

impl<T: Element> fmt::Debug for Receive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receive").finish_non_exhaustive()
    }
}

impl<T: Element> Pending<(Vec<T>, Envelope)> for Arc<Receive<T>> {
    fn is_done(&mut self) -> Result<bool> {
        self.core.worker.progress()?;
        let done = self.stage().advance(&self.core, &self.beside)?;
        if done {
            self.hear();
        }
        Ok(done)
    }

    fn wait(self: Box<Self>) -> Result<(Vec<T>, Envelope)> {
        let stage = std::mem::replace(&mut *self.stage(), Stage::Taken);
        let received = stage.wait(&self.core, &self.beside)?;
        self.hear();
        Ok(received)
    }
}
