//! Requests to owners: many places in one message, carried out by the owner's service thread.
//!
//! For memory that is not mapped, and for what UCX has no operation for: one message and one
//! answer for thousands of elements, atomics of every width, minima and floats. Where all memory
//! is mapped there is no service thread and nobody asks.
//!
//! When an answer has come, what was asked for is done, and what this rank does next comes
//! after it. Before a request leaves, earlier puts to its owner are complete. The requests of one
//! rank to one owner are carried out in the order in which they were posted.

mod serve;
mod settle;
mod wire;

pub(crate) use serve::{Desk, Served};
pub(crate) use settle::Unsettled;
pub(crate) use wire::{MemoryName, Places, Run, Work};

use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::Message;
use crate::world::Core;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Requests that may be without an answer; posting another waits for the oldest. Bounds what is
/// under way here and at the owners.
const IN_FLIGHT: usize = 8;

/// A set of requests in flight. It owns all that they use: dropping or forgetting it is harmless,
/// and the requests are carried out all the same, but nobody knows when: a flush or a barrier does
/// not wait for them.
#[derive(Debug)]
pub(crate) struct Asks {
    core: Arc<Core>,
    /// Oldest first.
    parts: VecDeque<Part>,
    /// How many of them wait for their answer.
    in_flight: usize,
    /// The answers of so many of the oldest have arrived.
    arrived: usize,
}

/// One request.
#[derive(Debug)]
struct Part {
    rank: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// For so many bytes of values.
    Waiting(Message, usize),
    Arrived(Result<Vec<u8>>),
}

impl Part {
    /// Takes the answer, which is complete, or waits for it.
    ///
    /// # Errors
    /// What ended the wait.
    fn arrive(&mut self, core: &Core) -> Result<()> {
        let _concerned = core.concerned_with(self.rank);
        if let Stage::Waiting(answer, len) = &mut self.stage {
            let len = *len;
            answer
                .wait_done()
                .map_err(|error| during(self.rank, error))?;
            let values = answer
                .wait()
                .and_then(|bytes| wire::open_answer(bytes, len))
                .map_err(|error| during(self.rank, error));
            // Of very many that are only "done" nothing is kept.
            let values = values.map(|values| if len == 0 { Vec::new() } else { values });
            self.stage = Stage::Arrived(values);
        }
        Ok(())
    }
}

impl MemoryName {
    /// Memory `id` of elements of type `T`.
    pub(crate) fn new<T: Element>(id: u64) -> Self {
        Self {
            id,
            type_hash: element::type_hash::<T>(),
            // Memory of larger elements cannot be registered.
            size: u32::try_from(size_of::<T>()).unwrap_or(0),
        }
    }
}

impl Asks {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: core.clone(),
            parts: VecDeque::new(),
            in_flight: 0,
            arrived: 0,
        }
    }

    /// Asks `rank` to do `work` at `places` of its memory; what is too large for one request goes
    /// in several. Nothing is asked for no places.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if values and places do not go together;
    /// [`ErrorKind::Unsupported`] where nobody serves; [`ErrorKind::Ucx`], or what ended a wait
    /// for the oldest answer.
    pub(crate) fn post(
        &mut self,
        rank: usize,
        memory: &MemoryName,
        places: Places<'_>,
        work: Work<'_>,
    ) -> Result<()> {
        let core = self.core.clone();
        let _concerned = core.check_for(rank)?;
        if self.core.served.is_none() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "no rank serves requests: all memory is mapped",
            ));
        }
        let (kind, size) = (work.kind(), (memory.size as usize).max(1));
        let bytes_each = kind.values_each() * size;
        let mut most = usize::MAX;
        if kind.answers() {
            most = wire::ANSWER / size;
        }
        if let Some(fit) = wire::VALUES.checked_div(bytes_each) {
            most = most.min(fit);
        }
        let pieces = wire::pieces(places, most.max(1));
        let elements: usize = pieces.iter().map(|piece| piece.elements).sum();
        if elements.checked_mul(bytes_each) != Some(work.values().len()) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} bytes of values for {elements} places",
                    work.values().len()
                ),
            ));
        }
        let mut values = work.values();
        for piece in pieces {
            let (mine, rest) = values.split_at(piece.elements * bytes_each);
            let len = if kind.answers() {
                piece.elements * size
            } else {
                0
            };
            self.send(rank, len, |ticket| {
                wire::encode(ticket, memory, kind, &piece, mine)
            })?;
            values = rest;
        }
        Ok(())
    }

    /// Sends one request, whose answer has `len` bytes of values.
    fn send(
        &mut self,
        rank: usize,
        len: usize,
        request: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<()> {
        self.make_room()?;
        let peers = self.core.peers();
        let worker = peers.worker();
        let owner = peers.for_memory(rank)?;
        worker.settle(owner)?;
        let ticket = self.core.job.next_ticket.fetch_add(1, Ordering::Relaxed) & !(1 << 63);
        let limit = len.max(wire::TEXT) + 1;
        // First: the answer is never early.
        let answer = worker.post_receive(wire::answer_tag(ticket), limit)?;
        let sent = worker.post_send(owner, self.core.world_rank() as u64, request(ticket));
        if let Err(error) = sent {
            answer.cancel();
            return Err(during(rank, error));
        }
        self.parts.push_back(Part {
            rank,
            stage: Stage::Waiting(answer, len),
        });
        self.in_flight += 1;
        Ok(())
    }

    /// Waits for the oldest answer if no other request may be in flight; keeps it.
    fn make_room(&mut self) -> Result<()> {
        if self.in_flight < IN_FLIGHT {
            return Ok(());
        }
        self.look()?;
        if self.in_flight < IN_FLIGHT {
            return Ok(());
        }
        // The first that has not: see `look`.
        if let Some(part) = self.parts.get_mut(self.arrived) {
            part.arrive(&self.core)?;
            self.in_flight -= 1;
            self.arrived += 1;
        }
        Ok(())
    }

    /// Takes the answers that have arrived.
    fn look(&mut self) -> Result<()> {
        let mut left = self.in_flight;
        for part in self.parts.range_mut(self.arrived..) {
            if left == 0 {
                break;
            }
            if let Stage::Waiting(answer, _) = &mut part.stage {
                left -= 1;
                if answer.is_done()? {
                    part.arrive(&self.core)?;
                    self.in_flight -= 1;
                }
            }
        }
        let arrived = |part: &&Part| matches!(part.stage, Stage::Arrived(_));
        let more = self.parts.range(self.arrived..).take_while(arrived);
        self.arrived += more.count();
        Ok(())
    }

    /// The elements' bytes in the answer to the oldest request, none for work that does not ask
    /// for them; waits for it. None when all have been given.
    ///
    /// # Errors
    /// Why the owner refused it, or what ended the wait: that answer is then lost, others are not.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(mut part) = self.parts.pop_front() else {
            return Ok(None);
        };
        self.arrived = self.arrived.saturating_sub(1);
        if matches!(part.stage, Stage::Waiting(..)) {
            self.in_flight -= 1;
            if let Err(error) = part.arrive(&self.core) {
                // It may still be carried out.
                self.core.may_forget(part.rank);
                return Err(error);
            }
        }
        match part.stage {
            Stage::Arrived(values) => values.map(Some),
            Stage::Waiting(..) => Err(Error::new(ErrorKind::Ucx, "an answer without an end")),
        }
    }

    /// Waits for all answers of work that has none but "done".
    ///
    /// # Errors
    /// The first of [`Asks::next`]; others are waited for all the same, unless a wait has ended
    /// early: one time limit is enough.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let mut all = Ok(());
        loop {
            match self.next() {
                Ok(None) => return all,
                Ok(Some(_)) => {}
                Err(error) => {
                    let ended = matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerFailed);
                    all = all.and(Err(error));
                    if ended {
                        return all;
                    }
                }
            }
        }
    }

    /// Whether all answers have arrived. Does not wait; makes progress.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`].
    pub(crate) fn is_done(&mut self) -> Result<bool> {
        if self.in_flight > 0 {
            self.core.peers().worker().progress()?;
            self.look()?;
        }
        Ok(self.in_flight == 0)
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let waiting = |part: &&Part| matches!(part.stage, Stage::Waiting(..));
        for part in self.parts.iter().filter(waiting) {
            self.core.may_forget(part.rank);
        }
    }
}

#[cold]
fn during(rank: usize, error: Error) -> Error {
    error
        .context(format!("request to rank {rank}"))
        .with_peer(rank)
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
