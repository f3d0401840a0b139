//! The one-way meeting of the ranks of a node: one has a few bytes for all others, who wait for
//! nobody else.
//!
//! Whether all have called the same is found out later, in the next meeting in which all wait for
//! each other: until then everybody's calls are kept ([`Block`]). Those who wait for the bytes
//! compare at once.

use super::{Engine, Number, State};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Patience;
use crate::world::node::{Block, INLINE, Way};
use crate::world::signature::{Call, History, Signature, mismatch};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the leader knows of mismatches.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Of those up to this meeting all ranks have heard.
    until: AtomicU32,
    /// The meeting in which it has found one last.
    found: AtomicU32,
}

impl Settled {
    /// Whether there is nothing to tell of meetings up to `meeting`, the last one that all waited in.
    pub(super) fn are_until(&self, meeting: u32) -> bool {
        self.until.load(Ordering::Relaxed) == meeting
    }

    pub(super) fn now_until(&self, meeting: u32) {
        self.until.store(meeting, Ordering::Relaxed);
    }
}

impl Engine {
    /// Collective. Passes what rank `root` gives as `mine`, `len` bytes, to `read` on all ranks.
    /// The root may return before the others come. Everything it wrote to other ranks' memory
    /// before is in its place when another rank returns.
    ///
    /// None if that needs a meeting in which all wait.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if this rank finds that the root has called something else; on all
    /// ranks in the next meeting in which all wait. Else as [`Engine::exchange`].
    pub(in crate::world) fn hand_out<R>(
        &self,
        signature: &Signature,
        root: usize,
        (mine, len): (&[u8], usize),
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<Result<R>> {
        let block = self.block_of_all().filter(|_| len <= INLINE)?;
        let root = self.nodes.place_of(root)?;
        let mut state = match self.begin(signature) {
            Ok(state) => state,
            Err(error) => return Some(Err(error)),
        };
        let number = come(&mut state, block, signature, mine)?;
        if root == self.nodes.my_place() {
            return Some(Ok(read(mine)));
        }
        let what = || format!("in {signature}{}", signature.place());
        let come = self
            .limits
            .waiting_for(what, || self.wait_for(block, number, signature, root));
        if let Err(error) = &come
            && error.kind() != ErrorKind::Mismatch
        {
            state.broken = Some(error.clone());
        }
        Some(come.map(|()| read(block.contribution(root, number.this))))
    }

    /// This rank comes to the others' meeting with a call that none of them makes, and does not
    /// wait for them; false if it must.
    pub(in crate::world) fn spoil(&self, signature: &Signature) -> bool {
        let Some(block) = self.block_of_all() else {
            return false;
        };
        let Ok(mut state) = self.begin(signature) else {
            return true;
        };
        come(&mut state, block, signature, &[]).is_some()
    }

    /// The block in which all ranks of the team meet, if they meet in one.
    fn block_of_all(&self) -> Option<&Block> {
        let one_node = self.nodes.count() == 1 && self.races.is_none();
        self.block.as_deref().filter(|_| one_node)
    }

    /// Waits for the root, and compares.
    fn wait_for(
        &self,
        block: &Block,
        number: Number,
        signature: &Signature,
        root: usize,
    ) -> Result<()> {
        let sequence = number.this;
        let tell = |waited| {
            let root = self.member_text(block, sequence, root, |rank| self.peers.world_rank(rank));
            self.tell(waited, signature, &format!("rank {root}"));
        };
        let patience = Patience::for_neighbours().telling(&tell);
        let come = block.wait_root(
            root,
            sequence,
            (&self.limits, patience),
            || self.peers.worker().help_messages(),
            |root| self.look_back(block, number, root),
        );
        come.map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                let root = self.member_text(block, sequence, root, |rank| rank);
                self.late(signature, &format!("rank {root}"))
            }
            _ => error.context(signature),
        })?;
        // Not as in `differs`, which looks up what this rank has said itself: others read that now.
        if block.signature(root, sequence) == Some(*signature) {
            return Ok(());
        }
        self.differs(block, sequence, root)
            .map_or(Ok(()), |text| Err(Error::new(ErrorKind::Mismatch, text)))
    }

    /// A member that does not come: whether it waits in an earlier meeting, in which this rank has
    /// not waited for it and has called something else.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if it does.
    pub(super) fn look_back(&self, block: &Block, number: Number, member: usize) -> Result<()> {
        if self.nodes.my_place() == 0 && !block.all_have_read(number.told) {
            // It could not say so yet.
            return Ok(());
        }
        let mut before = after(number.told, number.this.wrapping_sub(1))
            .filter(|&meeting| block.has_come(member, meeting));
        let found =
            before.find_map(|meeting| Some((meeting, self.differs(block, meeting, member)?)));
        match found {
            None => Ok(()),
            Some((meeting, text)) => {
                self.settled.found.store(meeting, Ordering::Relaxed);
                Err(Error::new(ErrorKind::Mismatch, text))
            }
        }
    }

    /// Why this node's ranks, who have all come, do not agree, if they do not: in this meeting or
    /// in one before it that was one-way. To be used by the leader.
    pub(super) fn disagreement(
        &self,
        block: &Block,
        number: Number,
        mine: &Signature,
    ) -> Option<String> {
        if !self.settled.are_until(number.told) && self.all_have_heard(block, number.told) {
            self.settled.now_until(number.told);
        }
        let settled = self.settled.until.load(Ordering::Relaxed);
        let same = |member| {
            block.history(member, number.this) == number.history.short()
                && block.signature(member, number.this) == Some(*mine)
        };
        if settled != number.told || !(1..block.members()).all(same) {
            let since = Block::later(settled, Block::kept_since(number.this));
            for meeting in after(since, number.this) {
                let mut members = 1..block.members();
                let text = members.find_map(|member| self.differs(block, meeting, member));
                if text.is_some() {
                    self.settled.found.store(meeting, Ordering::Relaxed);
                    return text;
                }
            }
        }
        self.settled.now_until(number.this);
        None
    }

    /// Whether all have heard of the mismatch with which meeting `told` ended.
    fn all_have_heard(&self, block: &Block, told: u32) -> bool {
        // One that refused a call of its own waited, too, but has only its own error.
        let refused = |member| {
            let signature = block.signature(member, told);
            signature.is_some_and(|one| one.call == Call::Refused)
        };
        let of_its_own = self.settled.found.load(Ordering::Relaxed) == told;
        (1..block.members()).all(|member| block.waits(member, told))
            && (of_its_own || !(0..block.members()).any(refused))
    }

    /// Why the call of `member` in a meeting and that of this rank do not go together.
    fn differs(&self, block: &Block, meeting: u32, member: usize) -> Option<String> {
        let (place, ranks) = (self.nodes.my_place(), self.nodes.mine());
        let mine = block.signature(place, meeting)?;
        let Some(other) = block.signature(member, meeting) else {
            return Some(format!("rank {} called something unknown", ranks[member]));
        };
        (other != mine).then(|| {
            let (here, there) = (
                block.place_of(place, meeting),
                block.place_of(member, meeting),
            );
            mismatch(
                (self.rank, &mine, &here.to_string()),
                (ranks[member], &other, &there.to_string()),
            )
        })
    }
}

/// This rank comes to the next meeting as a one-way one; None if it must wait in it.
fn come(state: &mut State, block: &Block, signature: &Signature, mine: &[u8]) -> Option<Number> {
    if Block::all_wait_in(state.sequence.wrapping_add(1)) {
        return None;
    }
    let number = state.next();
    block.arrive(number.this, signature, (Way::One, History::default()), mine);
    state.history.add(signature);
    Some(number)
}

/// The meetings after `since`, up to `last`.
fn after(since: u32, last: u32) -> impl Iterator<Item = u32> {
    (1..=last.wrapping_sub(since)).map(move |step| since.wrapping_add(step))
}
