//! Messages from one rank to another, by UCX's tag matching.
//!
//! A message's tag in UCX says that it is one of these (bit 62), whether it is a part of a
//! collective (bit 61), whether its content is in an [outbox](outbox) (bit 60), its team (15 bits), its sender in the team (17 bits) and the tag that the
//! program gave it, or the number of the collective (28 bits). The last bytes of a program's message, the *label*, say what is in it;
//! before them, in a job that looks for races, is the sender's clock.

mod direct;
#[cfg(test)]
mod fuzz;
mod outbox;
mod receive;

pub(super) use outbox::Outboxes;

use super::collective::{decode, encode};
use super::request::{Pending, Request};
use super::{Core, Races, Team};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{Message, Tags};
use crate::wait::{Concern, Concerned};
use outbox::{Header, Outgoing, Sending};
use receive::{Letter, Receive};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A message of this file. Tags of collectives and of answers do not have this bit.
const MESSAGE: u64 = 1 << 62;
/// One that is a part of a collective.
const PART: u64 = 1 << 61;
/// One whose content is in its sender's outbox.
const OUTSIDE: u64 = 1 << 60;
const TEAM_AT: u32 = 45;
const SENDER_AT: u32 = 28;
const SENDER: u64 = (1 << 17) - 1;
const TAG: u64 = (1 << 28) - 1;
/// Tags of messages are below this.
const TAGS: u32 = 1 << 28;

/// Any sender, or any tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Any;

/// Whose messages to receive: a rank's, or [`Any`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This rank's.
    Rank(usize),
    /// Whoever's comes first.
    Any,
}

/// Messages with which tag to receive: one, or [`Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// This one.
    Is(u32),
    /// Whichever comes first.
    Any,
}

impl From<usize> for Source {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

impl From<Any> for Source {
    fn from(_: Any) -> Self {
        Self::Any
    }
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Self {
        Self::Is(tag)
    }
}

impl From<Any> for Tag {
    fn from(_: Any) -> Self {
        Self::Any
    }
}

/// What is known of a message beside its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope {
    /// The sender's rank.
    pub source: usize,
    /// The tag it was sent with.
    pub tag: u32,
    /// Bytes of its content.
    pub bytes: usize,
}

impl Envelope {
    fn new(tag: u64, len: usize) -> Self {
        Self {
            source: usize::try_from(tag >> SENDER_AT & SENDER).unwrap_or(usize::MAX),
            tag: u32::try_from(tag & TAG).unwrap_or(0),
            bytes: len,
        }
    }

    /// Of a message of these bytes, the last `end` of which are not content.
    fn of(tag: u64, bytes: &[u8], end: usize) -> Self {
        let content = &bytes[..bytes.len().saturating_sub(end)];
        let len = match decode::<Header>(content) {
            Ok(header) if tag & OUTSIDE != 0 => usize::try_from(header.len).unwrap_or(usize::MAX),
            _ => content.len(),
        };
        Self::new(tag, len)
    }
}

/// Messages that a rank has sent to itself, or has had a look at, oldest first.
#[derive(Debug, Default)]
pub(super) struct Mailbox(Mutex<VecDeque<(u64, Vec<u8>)>>);

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Vec<u8>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, tags: Tags) -> Option<(u64, Vec<u8>)> {
        let mut letters = self.lock();
        let found = letters.iter().position(|(tag, _)| tags.fit(*tag))?;
        letters.remove(found)
    }

    /// `end` as for [`Envelope::of`].
    fn look(&self, tags: Tags, end: usize) -> Option<Envelope> {
        let letters = self.lock();
        let (tag, bytes) = letters.iter().find(|(tag, _)| tags.fit(*tag))?;
        Some(Envelope::of(*tag, bytes, end))
    }
}

/// Bytes that say what a message has in it: kind, hash and beginning of the type's name.
const LABEL: usize = 48;
const NAME: usize = LABEL - 9;

fn label(kind: u8, hash: u64, name: &str) -> [u8; LABEL] {
    let mut label = [0; LABEL];
    label[0] = kind;
    label[1..9].copy_from_slice(&hash.to_le_bytes());
    // The end of a long name tells more than its beginning.
    let name = &name.as_bytes()[name.len().saturating_sub(NAME)..];
    label[9..9 + name.len()].copy_from_slice(name);
    label
}

/// The type's name in a label.
fn name_in(label: &[u8; LABEL]) -> String {
    let name = String::from_utf8_lossy(&label[9..]);
    name.trim_end_matches('\0').to_string()
}

fn label_of_elements<T: Element>() -> [u8; LABEL] {
    const { assert!(size_of::<T>() > 0, "elements must have a size") };
    label(1, element::type_hash::<T>(), std::any::type_name::<T>())
}

fn label_of_objects<T>() -> [u8; LABEL] {
    label(2, element::type_hash::<T>(), std::any::type_name::<T>())
}

pub(super) fn bytes_of<T: Element>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

pub(super) fn values_of<T: Element>(content: &[u8]) -> Result<Vec<T>> {
    let mut bits = bytemuck::allocation::zeroed_vec::<T::Bits>(content.len() / size_of::<T>());
    let len = size_of_val(&bits[..]);
    element::write_bytes(&mut bits, 0, &content[..len]);
    element::vec_from_bits(bits)
}

impl Team {
    /// Sends `values` to rank `to` under `tag`; `to` may be this rank itself.
    ///
    /// Returns when `values` may be used again. A large message may wait until it is received.
    /// Messages from one rank to another with one tag are received in the order in which they were
    /// sent.
    ///
    /// Tags are below 2²⁸.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is no such rank or tag; [`ErrorKind::PeerFailed`],
    /// [`ErrorKind::Timeout`], [`ErrorKind::Ucx`].
    #[doc(alias = "ucp_tag_send_nbx")]
    pub fn send<T: Element>(&self, to: usize, tag: u32, values: &[T]) -> Result<()> {
        let content = bytemuck::cast_slice(values);
        self.core
            .send_now(to, tag, content, label_of_elements::<T>())
    }

    /// Starts to send `values`, of which a copy is made, so they may be used again at once. The
    /// request is done when the message has been handed on, which for one of more than some MiB may
    /// be when it is received.
    ///
    /// # Errors
    /// As [`Team::send`].
    pub fn isend<T: Element>(&self, to: usize, tag: u32, values: &[T]) -> Result<Request<'_, ()>> {
        let content = bytemuck::cast_slice(values);
        self.core
            .start_to_send(to, tag, content, label_of_elements::<T>())
    }

    /// Sends any serde type; see [`Team::send`]. It is received as the same type: a `String` as a
    /// `String`, not a `&str`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it cannot be encoded; else as [`Team::send`].
    pub fn send_obj<T: Serialize>(&self, to: usize, tag: u32, object: &T) -> Result<()> {
        self.core
            .send_now(to, tag, &encode(object)?, label_of_objects::<T>())
    }

    /// Receives a message from rank `from` with `tag`, or of [`Any`]: its elements, and where they
    /// come from. Waits for it.
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World) -> pgas::Result<()> {
    /// use pgas::Any;
    /// match world.rank() {
    ///     0 => world.send(1, 7, &[1.5, 2.5])?,
    ///     1 => {
    ///         let (values, envelope) = world.recv::<f64>(Any, 7)?;
    ///         println!("{values:?} from rank {}", envelope.source);
    ///     }
    ///     _ => {}
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the message has elements of another type: it is lost then;
    /// [`ErrorKind::InvalidValue`] if its bytes are no `T`; [`ErrorKind::InvalidArgument`] if
    /// there is no such rank; [`ErrorKind::PeerFailed`], [`ErrorKind::Timeout`], [`ErrorKind::Ucx`].
    #[doc(alias = "ucp_tag_msg_recv_nbx")]
    pub fn recv<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<(Vec<T>, Envelope)> {
        let letter = self.core.receive(from.into(), tag.into())?;
        let letter = letter.check(label_of_elements::<T>())?;
        let envelope = letter.envelope;
        Ok((letter.into_values(&self.core)?, envelope))
    }

    /// Receives a message into `to`, which must have its length. As [`Team::recv`].
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the lengths differ: the message is lost then; else as
    /// [`Team::recv`].
    pub fn recv_into<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        to: &mut [T],
    ) -> Result<Envelope> {
        let letter = self.core.receive(from.into(), tag.into())?;
        let letter = letter.check(label_of_elements::<T>())?;
        let envelope = letter.envelope;
        letter.into_slice(&self.core, to)?;
        Ok(envelope)
    }

    /// Receives an object of the same type that [`Team::send_obj`] has sent. As [`Team::recv`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it cannot be decoded as `T`; else as [`Team::recv`].
    pub fn recv_obj<T: DeserializeOwned>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<(T, Envelope)> {
        let letter = self.core.receive(from.into(), tag.into())?;
        let letter = letter.check(label_of_objects::<T>())?;
        let envelope = letter.envelope;
        Ok((decode(&letter.into_bytes(&self.core)?)?, envelope))
    }

    /// Starts to receive a message. Of several requests that a message fits, the one that was made
    /// first gets it. Dropping a request gives its message up, if there is one already.
    ///
    /// It is received while this rank waits for anything at all in this library, and while the
    /// request is looked at.
    ///
    /// # Errors
    /// As [`Team::recv`], most of them when it is waited for.
    pub fn irecv<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Request<'_, (Vec<T>, Envelope)>> {
        self.irecv_vec(from, tag, Vec::new())
    }

    /// As [`Team::irecv`], in the memory of `buffer`, which comes back with the message's elements
    /// and with their number as its length: new memory is slow at first. What is in it before does
    /// not matter. It is lost with the request.
    ///
    /// # Errors
    /// As [`Team::irecv`].
    pub fn irecv_vec<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        buffer: Vec<T>,
    ) -> Result<Request<'_, (Vec<T>, Envelope)>> {
        let core = &self.core;
        let from = from.into();
        let tags = core.tags(from, tag.into())?;
        let _concerned = core.concerned(from);
        core.check()?;
        let receive = match core.to_self.take(tags) {
            Some((tag, bytes)) => Receive::of(core, Letter::new(core, tag, bytes)?, buffer),
            None => Receive::new(core, core.worker.expect(tags)?, buffer),
        };
        core.worker.progress()?;
        Ok(Request::waiting(core, receive).with(core.concern(from)))
    }

    /// Sends `values` to rank `to`, and receives from another; neither waits for the other. Both
    /// with `tag`.
    ///
    /// # Errors
    /// As [`Team::send`] and [`Team::recv`].
    pub fn sendrecv<T: Element>(
        &self,
        to: usize,
        from: impl Into<Source>,
        tag: u32,
        values: &[T],
    ) -> Result<(Vec<T>, Envelope)> {
        let received = self.irecv(from, tag)?;
        self.send(to, tag, values)?;
        received.wait()
    }

    /// Waits for a message that [`Team::recv`] would receive; it stays where it is.
    ///
    /// # Errors
    /// As [`Team::recv`].
    #[doc(alias = "ucp_tag_probe_nb")]
    pub fn probe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Envelope> {
        let (from, tag) = (from.into(), tag.into());
        let tags = self.core.tags(from, tag)?;
        let _concerned = self.core.concerned(from);
        let found = self
            .core
            .worker
            .wait_look(tags, || self.core.to_self.look(tags, self.core.end()))
            .map_err(|error| self.core.none_came(error, from, tag))?;
        let envelope = match found {
            Ok(envelope) => envelope,
            Err((tag, len)) => self.core.envelope_of(tag, len)?,
        };
        self.core.found(envelope)?;
        Ok(envelope)
    }

    /// Whether there is a message that [`Team::recv`] would receive at once. Does not wait.
    ///
    /// # Errors
    /// As [`Team::recv`].
    pub fn iprobe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Option<Envelope>> {
        let from = from.into();
        let tags = self.core.tags(from, tag.into())?;
        let _concerned = self.core.concerned(from);
        self.core.check()?;
        let mut found = self.core.to_self.look(tags, self.core.end());
        if found.is_none() {
            self.core.worker.progress()?;
            let message = self.core.worker.look_for_message(tags)?;
            found = message
                .map(|(tag, len)| self.core.envelope_of(tag, len))
                .transpose()?;
        }
        if let Some(envelope) = found {
            self.core.found(envelope)?;
        }
        Ok(found)
    }
}

impl Pending<()> for Message {
    fn is_done(&mut self) -> Result<bool> {
        self.worker().progress()?;
        Message::is_done(self)
    }

    fn wait(mut self: Box<Self>) -> Result<()> {
        Message::wait(&mut self).map(drop)
    }
}

/// What goes on through the outbox, and the word to its receiver.
type Sent<'c, 'a> = (Outgoing<&'a [u8]>, Request<'c, ()>);

impl Core {
    /// Starts to send through UCX what [`Core::send_outside`] has checked, and did not take.
    fn post(
        &self,
        to: usize,
        tag: u32,
        content: &[u8],
        label: [u8; LABEL],
    ) -> Result<Request<'_, ()>> {
        self.count(to, 1, content.len());
        let mut bytes = Vec::with_capacity(content.len() + self.end());
        bytes.extend_from_slice(content);
        self.write_end(&mut bytes, label);
        let tag = MESSAGE | self.from(self.rank) | u64::from(tag);
        if to == self.rank {
            if let Some(bytes) = self.worker.offer(tag, bytes)? {
                self.to_self.lock().push_back((tag, bytes));
            }
            // A thread of this rank may sleep while it waits for it.
            self.worker.wake();
            return Ok(Request::done(self, ()));
        }
        self.send_to("send", to, tag, bytes)
    }

    /// Sends and waits until `content` may be used again.
    fn send_now(&self, to: usize, tag: u32, content: &[u8], label: [u8; LABEL]) -> Result<()> {
        let Some((mut outgoing, header)) = self.send_outside(to, tag, content, label, true)? else {
            return self.post(to, tag, content, label)?.wait();
        };
        let _concerned = self.concerned_with(to);
        outgoing
            .wait(self)
            .map_err(|error| error.context(format!("send to rank {to}")).with_peer(to))?;
        header.wait()
    }

    /// Starts to send; a copy of `content` is made.
    fn start_to_send(
        self: &Arc<Self>,
        to: usize,
        tag: u32,
        content: &[u8],
        label: [u8; LABEL],
    ) -> Result<Request<'_, ()>> {
        let Some((mut outgoing, header)) = self.send_outside(to, tag, content, label, false)?
        else {
            return self.post(to, tag, content, label);
        };
        if outgoing.step() {
            return Ok(header);
        }
        // The rest goes on whenever this process waits, also if nobody waits for this.
        let message = Arc::new(Mutex::new(outgoing.owned()));
        self.worker.keep_pump(message.clone());
        let core = self.clone();
        let sending = Sending { core, message };
        Ok(Request::waiting(self, sending).with(self.only(to)))
    }

    /// Checks a message that is to be sent. If it can go through the outbox, says so to its receiver:
    /// what is left to do, and the request of that word.
    fn send_outside<'a>(
        &self,
        to: usize,
        tag: u32,
        content: &'a [u8],
        label: [u8; LABEL],
        waits: bool,
    ) -> Result<Option<Sent<'_, 'a>>> {
        self.check_rank("send to", to)?;
        let _concerned = self.check_for(to)?;
        check_tag(tag)?;
        let Some((header, outgoing)) = Outgoing::start(self, to, content, waits) else {
            return Ok(None);
        };
        self.count(to, 1, content.len());
        let mut bytes = encode(&header)?;
        self.write_end(&mut bytes, label);
        let tag = MESSAGE | OUTSIDE | self.from(self.rank) | u64::from(tag);
        let header = self.send_to("send", to, tag, bytes)?;
        Ok(Some((outgoing, header)))
    }

    /// What is known of a message that has been seen. If its content is in an outbox it is taken
    /// out of UCX's queue for that, into the mailbox, where receives look first.
    fn envelope_of(&self, tag: u64, len: usize) -> Result<Envelope> {
        if tag & OUTSIDE == 0 {
            return Ok(Envelope::new(tag, len.saturating_sub(self.end())));
        }
        let exactly = Tags {
            tag,
            mask: u64::MAX,
        };
        let Some((tag, mut header)) = self.worker.take_message(exactly, usize::MAX)? else {
            // Another thread of this rank has just received it.
            return Ok(Envelope::new(tag, 0));
        };
        let bytes = header.wait()?;
        self.has_received(tag);
        let envelope = Envelope::of(tag, &bytes, self.end());
        self.to_self.lock().push_back((tag, bytes));
        Ok(envelope)
    }

    fn send_to(&self, what: &str, to: usize, tag: u64, bytes: Vec<u8>) -> Result<Request<'_, ()>> {
        let endpoint = self.peers.for_messages(to)?;
        self.engine.sends();
        let message = self
            .worker
            .post_send(endpoint, tag, bytes)
            .map_err(|error| error.context(format!("{what} to rank {to}")).with_peer(to))?;
        Ok(Request::waiting(self, message).with(self.only(to)))
    }

    /// The number of the next collective that has parts. The caller has the
    /// [`turn`](Core::turn), so it is the same on all ranks.
    pub(super) fn next_part(&self) -> u32 {
        self.next_part.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts to send a part of a collective.
    pub(super) fn send_part(
        &self,
        to: usize,
        part: u32,
        bytes: Vec<u8>,
    ) -> Result<Request<'_, ()>> {
        self.send_to("part", to, self.part_tag(self.rank, part), bytes)
    }

    fn part_tag(&self, from: usize, part: u32) -> u64 {
        MESSAGE | PART | self.from(from) | (u64::from(part) & TAG)
    }

    /// Receives the part that rank `from` has sent.
    pub(super) fn receive_part(&self, from: usize, part: u32) -> Result<Vec<u8>> {
        let tags = Tags {
            tag: self.part_tag(from, part),
            mask: u64::MAX,
        };
        let part = self.receive_tags(tags);
        part.map(|(_, bytes)| bytes).map_err(|error| {
            error
                .context(format!("part from rank {from}"))
                .with_peer(from)
        })
    }

    /// Bytes of a message after its content.
    fn end(&self) -> usize {
        LABEL + self.races().map_or(0, Races::bytes)
    }

    fn write_end(&self, bytes: &mut Vec<u8>, label: [u8; LABEL]) {
        if let Some(races) = self.races() {
            bytes.extend_from_slice(&races.tell_bytes());
        }
        bytes.extend_from_slice(&label);
    }

    /// A message is there, whose clock has not been looked at: what its sender has done comes before.
    fn found(&self, envelope: Envelope) -> Result<()> {
        match self.races() {
            Some(races) => races.hear_rank(self, self.peers.world_rank(envelope.source)),
            None => Ok(()),
        }
    }

    /// Whose failure ends a wait for a message.
    fn concern(&self, from: Source) -> Concern {
        match from {
            Source::Rank(rank) => self.only(rank),
            Source::Any => self.all(),
        }
    }

    fn concerned(&self, from: Source) -> Concerned {
        self.limits.concerned(|| self.concern(from))
    }

    fn receive(&self, from: Source, tag: Tag) -> Result<Letter> {
        let tags = self.tags(from, tag)?;
        let _concerned = self.concerned(from);
        self.check()?;
        let (tag, bytes) = self
            .receive_tags(tags)
            .map_err(|error| self.none_came(error, from, tag))?;
        let letter = Letter::new(self, tag, bytes)?;
        letter.hear(self);
        Ok(letter)
    }

    /// The next message with these tags: its own tag and its bytes.
    fn receive_tags(&self, tags: Tags) -> Result<(u64, Vec<u8>)> {
        let found = self
            .worker
            .wait_message(tags, usize::MAX, || self.to_self.take(tags))?;
        match found {
            Ok(letter) => Ok(letter),
            Err((tag, mut message)) => {
                let bytes = message.wait()?;
                self.has_received(tag);
                Ok((tag, bytes))
            }
        }
    }

    /// A message with this tag has been received, of this rank or another.
    fn has_received(&self, tag: u64) {
        // One to itself ends with the team, if it is not received.
        if Envelope::new(tag, 0).source != self.rank {
            self.engine.has_received();
        }
    }

    fn tags(&self, from: Source, tag: Tag) -> Result<Tags> {
        // What it is in any case.
        let mut tags = Tags {
            tag: MESSAGE | u64::from(self.team) << TEAM_AT,
            mask: !(OUTSIDE | SENDER << SENDER_AT | TAG),
        };
        if let Source::Rank(rank) = from {
            self.check_rank("receive from", rank)?;
            tags.tag = MESSAGE | self.from(rank);
            tags.mask |= SENDER << SENDER_AT;
        }
        if let Tag::Is(tag) = tag {
            check_tag(tag)?;
            tags.tag |= u64::from(tag);
            tags.mask |= TAG;
        }
        Ok(tags)
    }

    /// The team and the sender in a tag.
    fn from(&self, rank: usize) -> u64 {
        u64::from(self.team) << TEAM_AT | (rank as u64 & SENDER) << SENDER_AT
    }

    fn check_rank(&self, doing: &str, rank: usize) -> Result<()> {
        if rank < self.size {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{doing} rank {rank} of {}", self.size),
        ))
    }

    #[cold]
    fn none_came(&self, error: Error, from: Source, tag: Tag) -> Error {
        if error.kind() != ErrorKind::Timeout {
            return error.context(format!("receive from {from}, {tag}"));
        }
        let limit = self.limits.timeout().unwrap_or_default();
        let text = format!("no message from {from}, {tag}, within {limit:?}");
        let error = Error::new(ErrorKind::Timeout, text);
        match from {
            Source::Rank(rank) => error.with_peer(rank),
            Source::Any => error,
        }
    }
}

fn check_tag(tag: u32) -> Result<()> {
    if tag < TAGS {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("tag {tag}: tags are below {TAGS}"),
    ))
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Any => write!(f, "any rank"),
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(tag) => write!(f, "tag {tag}"),
            Self::Any => write!(f, "any tag"),
        }
    }
}
