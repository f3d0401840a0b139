//! `Segment`: memory of all ranks that was allocated together, and the keys to it.

use super::collective::{decode, encode};
use super::graves::News;
use super::{Call, Core, Signature};
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{MemoryHandle, RemoteKey, SerializedRemoteKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// Memory of all ranks that was allocated together.
#[derive(Debug)]
pub(crate) struct Segment {
    /// By rank, unpacked at first use.
    keys: Vec<OnceLock<RemoteKey>>,
    packed: Vec<SerializedRemoteKey>,
    memory: MemoryHandle,
}

/// What is to be allocated: the same on all ranks.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    /// The collective that allocates it.
    pub(crate) call: Call,
    /// Elements of the array, and a number that tells its layout, for ranks that disagree.
    pub(crate) len: usize,
    pub(crate) layout: u64,
    /// Elements of each rank's memory.
    pub(crate) counts: &'a dyn Fn(usize) -> usize,
}

/// What a rank says before memory is mapped.
#[derive(Serialize, Deserialize)]
struct Proposal {
    /// All of it, of which a signature has a part only: ranks reach each other's memory without
    /// asking how much there is.
    layout: [u64; 4],
    room: Result<(), String>,
    /// What it has dropped.
    news: News,
}

impl Memory<'_> {
    /// What a rank says in step `step` of the allocation for elements of type `T`.
    #[track_caller]
    pub(crate) fn signature<T: Element>(&self, step: u32) -> Signature {
        let mut signature = Signature::new(self.call).count(self.len).element::<T>();
        // As much of the layout as there is place for.
        let upper = u32::try_from(self.layout >> 34).unwrap_or(0);
        signature.detail = upper << 2 | step;
        signature
    }

    fn layout_of<T: Element>(&self) -> [u64; 4] {
        let (size, align) = (size_of::<T>() as u64, align_of::<T>() as u64);
        [self.len as u64, size, align, self.layout]
    }
}

impl Segment {
    /// Allocates elements of zero bytes on each rank. `before` runs on each rank before any peer
    /// can ask for its memory, `refused` before what was mapped is unmapped again. Collective; the caller has the [turn](Core::turn) and has
    /// [met](meet).
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] on all ranks if one has too little room, naming what is wanted and
    /// what is free; else as a barrier.
    #[track_caller]
    pub(crate) fn allocate<T: Element>(
        core: &Core,
        what: &Memory<'_>,
        before: impl FnOnce(&MemoryHandle),
        refused: impl FnOnce(),
    ) -> Result<Self> {
        let made = map::<T>(core, (what.counts)(core.rank));
        if let Ok((memory, _)) = &made {
            before(memory);
        }
        let answer = match &made {
            Ok((_, key)) => Ok(key.clone()),
            Err(error) => Err(error.to_string()),
        };
        let answers: Vec<Result<SerializedRemoteKey, String>> =
            core.gather(&what.signature::<T>(1), &answer)?;
        let mut packed = Vec::with_capacity(core.size);
        for (rank, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(key) => packed.push(key),
                Err(reason) => {
                    refused();
                    if let Ok((memory, _)) = made {
                        // Refused by all ranks alike: nobody will use its key.
                        super::unmap(memory);
                    }
                    return Err(no_room(what.len, rank, &reason));
                }
            }
        }
        let (memory, _) = made?;
        Ok(Self {
            memory,
            keys: packed.iter().map(|_| OnceLock::new()).collect(),
            packed,
        })
    }

    /// This rank's own memory.
    pub(crate) fn memory(&self) -> &MemoryHandle {
        &self.memory
    }

    /// The memory alone: no key to it is used any more.
    pub(super) fn into_memory(self) -> MemoryHandle {
        self.memory
    }

    /// The key to `rank`'s memory.
    pub(crate) fn key(&self, core: &Core, rank: usize) -> Result<&RemoteKey> {
        if let Some(key) = self.keys[rank].get() {
            return Ok(key);
        }
        // A dead rank's memory may be gone, and UCX 1.13 crashes when it cannot map it.
        let _concerned = core.check_for(rank)?;
        let key = core.peers().for_memory(rank)?.unpack(&self.packed[rank])?;
        // Another thread may have been faster; its key is as good.
        Ok(self.keys[rank].get_or_init(|| key))
    }
}

/// All ranks meet before anything is mapped: is there room on every node (if it is `new` memory that
/// is wanted), and what can be unmapped since all have dropped it? Collective; the caller has the
/// [turn](Core::turn).
///
/// # Errors
/// As [`Segment::allocate`].
#[track_caller]
pub(crate) fn meet<T: Element>(core: &Core, what: &Memory<'_>, new: bool) -> Result<()> {
    let mut room = match new {
        true => room_for::<T>(core, what.counts),
        false => Ok(()),
    };
    let mut news = core.graves().news();
    loop {
        let layout = what.layout_of::<T>();
        let mine = Proposal { layout, room, news };
        let proposals: Vec<Proposal> = core
            .gather(&what.signature::<T>(0), &mine)
            .inspect_err(|_| core.graves().not_told(mine.news))?;
        for proposal in &proposals {
            core.graves().hear(&proposal.news);
        }
        // Compared with the first, so that all ranks find the same.
        let differs = |proposal: &Proposal| proposal.layout != proposals[0].layout;
        if let Some(rank) = proposals.iter().position(differs) {
            return Err(another_layout(rank, what));
        }
        let mut answers = proposals.iter().map(|proposal| &proposal.room).enumerate();
        let refusal = answers.find_map(|(rank, answer)| Some((rank, answer.as_ref().err()?)));
        let Some((rank, reason)) = refusal else {
            return Ok(());
        };
        // What was just unmapped may have made room: once more, if there was any.
        if proposals.iter().all(|proposal| proposal.news.is_empty()) {
            return Err(no_room(what.len, rank, reason));
        }
        room = room_for::<T>(core, what.counts);
        news = core.graves().news();
    }
}

impl Core {
    /// All ranks' `item`, by rank. Collective.
    pub(super) fn gather<T: Serialize + DeserializeOwned>(
        &self,
        signature: &Signature,
        item: &T,
    ) -> Result<Vec<T>> {
        self.gather_blobs(signature, &encode(item)?)?
            .iter()
            .map(|blob| decode(blob))
            .collect()
    }
}

fn room_for<T: Element>(core: &Core, count_of: &dyn Fn(usize) -> usize) -> Result<(), String> {
    let bytes_of = |rank| (count_of(rank) as u64).saturating_mul(size_of::<T>() as u64);
    let here = core.neighbours().iter().map(|&rank| bytes_of(rank));
    let largest = here.clone().max().unwrap_or(0);
    let machine = here.fold(0, u64::saturating_add);
    core.check_room(machine, largest, bytes_of(core.rank))
}

/// Maps this rank's memory and checks that peers on this node can map it too.
fn map<T: Element>(core: &Core, count: usize) -> Result<(MemoryHandle, SerializedRemoteKey)> {
    let memory = MemoryHandle::allocate::<T>(core.context(), count)?;
    let key = memory.pack()?;
    if core.shares_memory() && count > 0 {
        // UCX falls back to private memory in silence when shared memory is short.
        let seen_by_peers = core.peers().for_memory(core.rank)?.unpack(&key)?;
        if seen_by_peers.as_ptr().is_none() {
            let error = Error::new(
                ErrorKind::NoRoom,
                format!(
                    "UCX gave {} bytes of private memory instead of shared memory: {}",
                    memory.len(),
                    core.shm_text()
                ),
            );
            drop(seen_by_peers);
            super::unmap(memory); // No key has left this rank.
            return Err(error);
        }
    }
    Ok((memory, key))
}

#[cold]
fn another_layout(rank: usize, what: &Memory<'_>) -> Error {
    Error::new(
        ErrorKind::Mismatch,
        format!(
            "an array of {} elements: rank {rank} has another element type, shape or distribution",
            what.len
        ),
    )
    .with_peer(rank)
}

#[cold]
fn no_room(len: usize, rank: usize, reason: &str) -> Error {
    Error::new(
        ErrorKind::NoRoom,
        format!("an array of {len} elements: rank {rank}: {reason}"),
    )
    .with_peer(rank)
}
