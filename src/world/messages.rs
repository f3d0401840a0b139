//! Messages from one rank to another, by UCX's tag matching.
//!
//! A message's tag in UCX says that it is one of these (bit 62), whether it is a part of a
//! collective (bit 61), its team (16 bits), its sender in the team (17 bits) and the tag that the
//! program gave it, or the number of the collective (28 bits). The last bytes of a program's message, the *label*, say what is in it.

use super::collective::{decode, encode};
use super::request::{Pending, Request};
use super::{Core, Team};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{Message, Tags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A message of this file. Tags of collectives and of answers do not have this bit.
const MESSAGE: u64 = 1 << 62;
/// One that is a part of a collective.
const PART: u64 = 1 << 61;
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
            bytes: len.saturating_sub(LABEL),
        }
    }
}

/// Messages that a rank has sent to itself, oldest first.
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

    fn look(&self, tags: Tags) -> Option<(u64, usize)> {
        let letters = self.lock();
        let found = letters.iter().find(|(tag, _)| tags.fit(*tag))?;
        Some((found.0, found.1.len()))
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

fn label_of_elements<T: Element>() -> [u8; LABEL] {
    const { assert!(size_of::<T>() > 0, "elements must have a size") };
    label(1, element::type_hash::<T>(), std::any::type_name::<T>())
}

fn label_of_objects<T>() -> [u8; LABEL] {
    label(2, element::type_hash::<T>(), std::any::type_name::<T>())
}

/// The content of a message, if it is what is expected.
fn open(bytes: &[u8], expected: [u8; LABEL], envelope: Envelope) -> Result<&[u8]> {
    let (content, found) = bytes
        .split_last_chunk::<LABEL>()
        .ok_or_else(|| Error::new(ErrorKind::Ucx, "a message without an end"))?;
    if *found == expected {
        return Ok(content);
    }
    let name = |label: &[u8; LABEL]| {
        let name = String::from_utf8_lossy(&label[9..]);
        name.trim_end_matches('\0').to_string()
    };
    Err(Error::new(
        ErrorKind::Mismatch,
        format!(
            "rank {} sent {} with tag {}, and {} was to be received",
            envelope.source,
            name(found),
            envelope.tag,
            name(&expected)
        ),
    )
    .with_peer(envelope.source))
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
        self.isend(to, tag, values)?.wait()
    }

    /// Starts to send `values`, of which a copy is made, so they may be used again at once. The
    /// request is done when UCX has handed the message on, which for a large one may be when it
    /// is received.
    ///
    /// # Errors
    /// As [`Team::send`].
    pub fn isend<T: Element>(&self, to: usize, tag: u32, values: &[T]) -> Result<Request<'_, ()>> {
        let content = bytemuck::cast_slice(values);
        self.core.post(to, tag, content, label_of_elements::<T>())
    }

    /// Sends any serde type; see [`Team::send`]. It is received as the same type: a `String` as a
    /// `String`, not a `&str`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it cannot be encoded; else as [`Team::send`].
    pub fn send_obj<T: Serialize>(&self, to: usize, tag: u32, object: &T) -> Result<()> {
        self.core
            .post(to, tag, &encode(object)?, label_of_objects::<T>())?
            .wait()
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
        let (bytes, envelope) = self.core.receive(from.into(), tag.into())?;
        let content = open(&bytes, label_of_elements::<T>(), envelope)?;
        Ok((values_of(content)?, envelope))
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
        let (values, envelope) = self.recv::<T>(from, tag)?;
        if values.len() != to.len() {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!(
                    "rank {} sent {} elements with tag {}, and {} were to be received",
                    envelope.source,
                    values.len(),
                    envelope.tag,
                    to.len()
                ),
            )
            .with_peer(envelope.source));
        }
        to.copy_from_slice(&values);
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
        let (bytes, envelope) = self.core.receive(from.into(), tag.into())?;
        let content = open(&bytes, label_of_objects::<T>(), envelope)?;
        Ok((decode(content)?, envelope))
    }

    /// Starts to receive a message. Of several requests that a message fits, the one that is waited
    /// for or looked at first gets it. A message that was found belongs to the request: dropping that
    /// loses it.
    ///
    /// A large message is received while the request is waited for or looked at: a sender that
    /// waits until then must not be what this rank waits for meanwhile.
    ///
    /// # Errors
    /// As [`Team::recv`], most of them when it is waited for.
    pub fn irecv<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Request<'_, (Vec<T>, Envelope)>> {
        let tags = self.core.tags(from.into(), tag.into())?;
        let mut receive = Receive::<T> {
            core: &self.core,
            tags,
            found: None,
            element: std::marker::PhantomData,
        };
        receive.is_done()?;
        Ok(Request::waiting(&self.core, receive))
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
        let send = self.isend(to, tag, values)?;
        let received = self.recv(from, tag)?;
        send.wait()?;
        Ok(received)
    }

    /// Waits for a message that [`Team::recv`] would receive; it stays where it is.
    ///
    /// # Errors
    /// As [`Team::recv`].
    #[doc(alias = "ucp_tag_probe_nb")]
    pub fn probe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Envelope> {
        let (from, tag) = (from.into(), tag.into());
        let tags = self.core.tags(from, tag)?;
        let found = self
            .core
            .worker
            .wait_look(tags, || self.core.to_self.look(tags))
            .map_err(|error| self.core.none_came(error, from, tag))?;
        let (Ok((tag, len)) | Err((tag, len))) = found;
        Ok(Envelope::new(tag, len))
    }

    /// Whether there is a message that [`Team::recv`] would receive at once. Does not wait.
    ///
    /// # Errors
    /// As [`Team::recv`].
    pub fn iprobe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Option<Envelope>> {
        let tags = self.core.tags(from.into(), tag.into())?;
        self.core.check()?;
        let found = match self.core.to_self.look(tags) {
            Some(found) => Some(found),
            None => {
                self.core.worker.progress()?;
                self.core.worker.look_for_message(tags)?
            }
        };
        Ok(found.map(|(tag, len)| Envelope::new(tag, len)))
    }
}

/// A message that is to be received.
struct Receive<'a, T> {
    core: &'a Core,
    tags: Tags,
    /// The message, once there is one.
    found: Option<(u64, Found)>,
    element: std::marker::PhantomData<T>,
}

enum Found {
    Here(Vec<u8>),
    UnderWay(Message),
}

impl<T: Element> Receive<'_, T> {
    /// Takes the message if there is one.
    fn look(&mut self) -> Result<()> {
        if self.found.is_none() {
            self.found = match self.core.to_self.take(self.tags) {
                Some((tag, bytes)) => Some((tag, Found::Here(bytes))),
                None => {
                    let taken = self.core.worker.take_message(self.tags, usize::MAX)?;
                    taken.map(|(tag, message)| (tag, Found::UnderWay(message)))
                }
            };
        }
        Ok(())
    }
}

impl<T: Element> Pending<(Vec<T>, Envelope)> for Receive<'_, T> {
    fn is_done(&mut self) -> Result<bool> {
        self.core.worker.progress()?;
        self.look()?;
        match &mut self.found {
            None => Ok(false),
            Some((_, Found::Here(_))) => Ok(true),
            Some((_, Found::UnderWay(message))) => message.is_done(),
        }
    }

    fn wait(self: Box<Self>) -> Result<(Vec<T>, Envelope)> {
        let (tag, bytes) = match self.found {
            Some((tag, Found::Here(bytes))) => (tag, bytes),
            Some((tag, Found::UnderWay(mut message))) => (tag, message.wait()?),
            None => self.core.receive_tags(self.tags)?,
        };
        let envelope = Envelope::new(tag, bytes.len());
        let content = open(&bytes, label_of_elements::<T>(), envelope)?;
        Ok((values_of(content)?, envelope))
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

impl Core {
    fn post(
        &self,
        to: usize,
        tag: u32,
        content: &[u8],
        label: [u8; LABEL],
    ) -> Result<Request<'_, ()>> {
        self.check()?;
        self.check_rank("send to", to)?;
        let mut bytes = Vec::with_capacity(content.len() + LABEL);
        bytes.extend_from_slice(content);
        bytes.extend_from_slice(&label);
        check_tag(tag)?;
        let tag = MESSAGE | self.from(self.rank) | u64::from(tag);
        if to == self.rank {
            self.to_self.lock().push_back((tag, bytes));
            // A thread of this rank may sleep while it waits for it.
            self.worker.wake();
            return Ok(Request::done(self, ()));
        }
        self.send_to("send", to, tag, bytes)
    }

    fn send_to(&self, what: &str, to: usize, tag: u64, bytes: Vec<u8>) -> Result<Request<'_, ()>> {
        let endpoint = self.peers.for_messages(to)?;
        let message = self
            .worker
            .post_send(endpoint, tag, bytes)
            .map_err(|error| error.context(format!("{what} to rank {to}")).with_peer(to))?;
        Ok(Request::waiting(self, message))
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

    fn receive(&self, from: Source, tag: Tag) -> Result<(Vec<u8>, Envelope)> {
        self.check()?;
        let tags = self.tags(from, tag)?;
        let (tag, bytes) = self
            .receive_tags(tags)
            .map_err(|error| self.none_came(error, from, tag))?;
        let envelope = Envelope::new(tag, bytes.len());
        Ok((bytes, envelope))
    }

    /// The next message with these tags: its own tag and its bytes.
    fn receive_tags(&self, tags: Tags) -> Result<(u64, Vec<u8>)> {
        let found = self
            .worker
            .wait_message(tags, usize::MAX, || self.to_self.take(tags))?;
        match found {
            Ok(letter) => Ok(letter),
            Err((tag, mut message)) => Ok((tag, message.wait()?)),
        }
    }

    fn tags(&self, from: Source, tag: Tag) -> Result<Tags> {
        // What it is in any case.
        let mut tags = Tags {
            tag: MESSAGE | u64::from(self.team) << TEAM_AT,
            mask: !(SENDER << SENDER_AT | TAG),
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
