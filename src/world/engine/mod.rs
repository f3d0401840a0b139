//! The one mechanism under all collectives: every rank contributes bytes, every rank gets the
//! combined bytes, and nobody gets them unless all ranks called the same thing.
//!
//! Inside a node the ranks meet in shared memory ([`Block`]); the nodes' leaders exchange
//! messages along a binomial tree, up to rank 0's node and down again: O(log nodes) steps.

mod deferred;
#[cfg(test)]
mod fuzz;
mod names;
mod one_way;

pub(super) use deferred::Deferred;

use super::bells::Bells;
use super::node::{Block, INLINE, Verdict, Way};
use super::peers::{Nodes, Peers, Tree};
use super::races::Races;
use super::signature::{History, Signature, mismatch};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::MemoryHandle;
use crate::wait::{Limits, Patience};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How contributions become the result. All are of one length, given by the signature.
pub(crate) enum Combine<'a> {
    /// There is nothing to combine.
    Nothing,
    /// One after another, by rank.
    Concat,
    /// The contribution of this rank; the others' are empty.
    Root(Root),
    /// Element by element, in rank order within a node and then node by node: `a = a op b`.
    Reduce(&'a dyn Fn(&mut [u8], &[u8]), By),
}

/// Who contributes, and how many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) rank: usize,
    pub(crate) len: usize,
}

/// Who combines what a node's ranks contribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The leader: ranks could have different functions.
    Leader,
    /// Perhaps each for itself.
    All,
}

/// Who knows how a meeting has ended, before the leader says so.
enum Known {
    ToAll,
    ToLeader,
}

/// What is often a few bytes.
pub(super) type Bytes = SmallVec<[u8; INLINE]>;

/// Most that a rank waits longer for each other rank that a word has to come through.
const GRACE: Duration = Duration::from_secs(2);
/// Longest text that tells of a failure.
const TEXT: usize = 4096;
/// Messages of another collective up to this size are understood well enough to name it.
const LIMIT: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Engine {
    peers: Peers,
    nodes: Arc<Nodes>,
    /// None on a node of one rank.
    block: Option<Arc<Block>>,
    rank: usize,
    /// Tells the messages of teams apart.
    team: u32,
    races: Option<Arc<Races>>,
    limits: Arc<Limits>,
    /// What leaders of other nodes were last seen in, by node, as far as they have told this one.
    heard: Mutex<HashMap<usize, String>>,
    /// Messages under the team's tags that this rank has sent, less those it has received.
    open: AtomicI64,
    /// To be used by the leader.
    settled: one_way::Settled,
    state: Mutex<State>,
}

/// What meetings change.
#[derive(Debug)]
pub(super) struct State {
    sequence: u32,
    /// The last meeting that this rank has waited in.
    told: u32,
    /// Of its calls since then.
    history: History,
    /// After a failure ranks may be at different points: no later collective can be right.
    broken: Option<Error>,
    deferred: deferred::Queue,
}

impl State {
    fn next(&mut self) -> Number {
        self.sequence = self.sequence.wrapping_add(1);
        self.number()
    }

    /// That of the meeting that goes on.
    fn number(&self) -> Number {
        Number {
            this: self.sequence,
            told: self.told,
            history: self.history,
        }
    }

    /// After a meeting that this rank has waited in.
    fn is_over(&mut self) {
        self.told = self.sequence;
        self.history = History::default();
    }
}

/// What a rank calls, and gives.
#[derive(Clone, Copy)]
pub(super) struct Calls<'a> {
    pub(super) signature: &'a Signature,
    pub(super) mine: &'a [u8],
    pub(super) combine: &'a Combine<'a>,
}

/// The number of a meeting, and that of the last one before it that this rank has waited in.
#[derive(Clone, Copy, Debug)]
struct Number {
    this: u32,
    told: u32,
    history: History,
}

/// Why a meeting has no result.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Trouble {
    /// Ranks did not come; else they do not agree.
    late: bool,
    text: String,
}

impl Trouble {
    fn mismatch(text: String) -> Self {
        Self { late: false, text }
    }

    fn late(error: &Error) -> Self {
        Self {
            late: true,
            text: error.to_string(),
        }
    }

    fn error(self) -> Error {
        let kind = match self.late {
            true => ErrorKind::Timeout,
            false => ErrorKind::Mismatch,
        };
        Error::new(kind, self.text)
    }
}

/// From a leader to its parent in the tree: what its subtree contributes.
#[derive(Serialize, Deserialize)]
struct Up {
    rank: usize,
    signature: Signature,
    /// Where that rank's program calls it.
    place: String,
    /// Why the subtree contributes nothing.
    trouble: Option<Trouble>,
    /// Node and bytes. One part unless they are to be put one after another.
    parts: Vec<Part>,
}

/// From a leader to its children: the result, or why there is none.
#[derive(Serialize, Deserialize)]
struct Down {
    /// Where the parent's program calls it.
    place: String,
    trouble: Option<Trouble>,
    data: Vec<u8>,
}

/// What `work` returns. If it panics, which is the user's to catch, `give_up` is told first.
pub(super) fn or_break<R>(work: impl FnOnce() -> R, give_up: impl FnOnce(Error)) -> R {
    // What the panic has left half done is not used again: that is what giving up is.
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(panic) => {
            let text = "this rank panicked in a collective";
            give_up(Error::new(ErrorKind::Mismatch, text));
            panic::resume_unwind(panic)
        }
    }
}

fn after(error: &Error, signature: &Signature) -> Error {
    error
        .clone()
        .context(format!("{signature} after a failed collective"))
}

impl Engine {
    pub(super) fn new(
        peers: Peers,
        nodes: Arc<Nodes>,
        block: Option<Arc<Block>>,
        rank: usize,
        team: u32,
        races: Option<Arc<Races>>,
        limits: Arc<Limits>,
    ) -> Self {
        Self {
            peers,
            nodes,
            block,
            rank,
            team,
            races,
            limits,
            heard: Mutex::default(),
            open: AtomicI64::new(0),
            settled: one_way::Settled::default(),
            state: Mutex::new(State {
                sequence: 0,
                told: 0,
                history: History::default(),
                broken: None,
                deferred: deferred::Queue::default(),
            }),
        }
    }

    /// The memory of the node's meeting block, on its leader.
    pub(super) fn block_memory(&self) -> Option<MemoryHandle> {
        self.block.as_ref().and_then(|block| block.memory())
    }

    /// For those of this node who wait for elements.
    pub(super) fn bells(&self) -> &Bells {
        match &self.block {
            Some(block) => block.bells(),
            None => Bells::of_this_process(),
        }
    }

    /// A message is sent under the team's tags.
    pub(super) fn sends(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// A message under the team's tags has been received.
    pub(super) fn has_received(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many more messages this rank has sent than received. All ranks' numbers add up to the
    /// messages that nobody has received, once nobody sends any more.
    pub(super) fn open_messages(&self) -> i64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Collective. Contributes `mine` and passes the combined bytes to `read`. Everything this
    /// rank wrote to other ranks' memory before is in its place when any rank returns.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on all ranks; [`ErrorKind::Timeout`], [`ErrorKind::PeerFailed`]
    /// or [`ErrorKind::Ucx`], after which no collective succeeds any more.
    pub(super) fn exchange<R>(
        &self,
        signature: &Signature,
        mine: &[u8],
        combine: &Combine<'_>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let call = Calls {
            signature,
            mine,
            combine,
        };
        self.exchange_begun(self.begin(signature)?, call, read)
    }

    /// [`Engine::exchange`] that has [begun](Engine::begin).
    pub(super) fn exchange_begun<R>(
        &self,
        mut state: MutexGuard<'_, State>,
        call: Calls<'_>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        if let Some(races) = &self.races {
            // A meeting of its own, in which all hear what all have done before.
            let clocks = Calls {
                mine: &races.tell_bytes(),
                combine: &Combine::Concat,
                ..call
            };
            self.meet(&mut state, clocks, |clocks| races.hear_bytes(clocks))?;
        }
        self.meet(&mut state, call, read)
    }

    /// Before any meeting. No other thread of this rank is in one until what is returned is dropped.
    pub(super) fn begin(&self, signature: &Signature) -> Result<MutexGuard<'_, State>> {
        self.peers.worker().context().refuse_fork()?;
        self.limits.check()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &state.broken {
            return Err(after(error, signature));
        }
        if !state.deferred.is_empty() {
            self.hold_deferred(&mut state)
                .map_err(|error| error.context(format!("before {signature}")))?;
        }
        // Seen by all: ordinary stores before the flags, and remote ones now.
        if let Err(error) = self.peers.worker().flush() {
            // The others meet without this rank: it is out of step.
            state.broken = Some(error.clone());
            return Err(error.context(signature));
        }
        Ok(state)
    }

    /// One meeting.
    fn meet<R>(
        &self,
        state: &mut State,
        call: Calls<'_>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let signature = call.signature;
        let (number, block) = (state.next(), self.block.as_deref());
        let what = || format!("in {signature}{}", signature.place());
        let meeting = || match block {
            Some(block) if self.nodes.my_place() != 0 => self.follow(block, number, call, read),
            block => self.lead(block, number, call, read),
        };
        // An operator of the user's may panic while others wait for what it makes.
        let broken = &mut state.broken;
        let outcome = or_break(
            || self.limits.waiting_for(what, meeting),
            |error| *broken = Some(error),
        );
        if let Err(error) = &outcome
            && error.kind() != ErrorKind::Mismatch
        {
            state.broken = Some(error.clone());
        }
        state.is_over();
        outcome
    }

    /// What [`give_up`](Engine::give_up) or a failed collective has left.
    ///
    /// # Errors
    /// If there is anything of that kind: no collective can be right any more.
    pub(super) fn check(&self, signature: &Signature) -> Result<()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.broken {
            None => Ok(()),
            Some(error) => Err(after(error, signature)),
        }
    }

    /// No later collective can be right: this rank has left one in the middle.
    pub(super) fn give_up(&self, error: &Error) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.broken.get_or_insert_with(|| error.clone());
    }

    /// Whether a meeting is flat: the same on all ranks that call the same.
    fn is_flat(&self, block: &Block, sequence: u32, call: Calls<'_>) -> bool {
        let len = match call.combine {
            Combine::Nothing => 0,
            Combine::Concat | Combine::Reduce(_, By::All) => call.mine.len(),
            Combine::Root(root) => root.len,
            Combine::Reduce(_, By::Leader) => return false,
        };
        self.nodes.count() == 1 && block.may_be_flat(sequence, len)
    }

    /// A member's part.
    fn follow<R>(
        &self,
        block: &Block,
        number: Number,
        call: Calls<'_>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let (sequence, signature) = (number.this, call.signature);
        let flat = self.is_flat(block, sequence, call);
        let way = if flat { Way::Flat } else { Way::Led };
        let said = block.arrive(sequence, signature, (way, number.history), call.mine);
        let tell = |waited| self.tell_absent(waited, signature, block, sequence);
        let patience = || self.patience_with(2 * self.levels() + 2).telling(&tell);
        let help = || self.peers.worker().help_messages();
        let explain = |error| self.explain(error, block, sequence, signature);
        if flat {
            block
                .wait_others(sequence, (&self.limits, patience()), help)
                .map_err(explain)?;
            if block.agree(sequence, said) {
                return Ok(read(&self.combine_node(Some(block), sequence, call)));
            }
        }
        block
            .wait_release(
                sequence,
                (&self.limits, patience()),
                help,
                |verdict, data| outcome(verdict, data).map(|()| read(data)),
            )
            .unwrap_or_else(|error| Err(explain(error)))
    }

    /// A leader's part.
    fn lead<R>(
        &self,
        block: Option<&Block>,
        number: Number,
        call: Calls<'_>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let sequence = number.this;
        let combined = self.lead_until_release(block, number, call);
        if let Some(block) = block {
            match &combined {
                Ok((_, Known::ToAll)) => {}
                Ok((data, Known::ToLeader)) => block.release(sequence, Verdict::Good, data),
                // A member that did not come may still be reading the last result, and finds out
                // by itself; unless it waits for a release.
                Err(error)
                    if error.kind() != ErrorKind::Mismatch
                        && block.absent(sequence).next().is_some() => {}
                Err(error) => release_with(block, sequence, error),
            }
        }
        combined.map(|(data, _)| read(&data))
    }

    fn lead_until_release(
        &self,
        block: Option<&Block>,
        number: Number,
        call: Calls<'_>,
    ) -> Result<(Bytes, Known)> {
        let (sequence, signature) = (number.this, call.signature);
        // Other nodes are waited for since then.
        let began = (self.nodes.count() > 1).then(Instant::now);
        let mut trouble = None;
        if let Some(block) = block {
            // Else this rank agrees with nobody, so that all wait for what it has yet to tell.
            let settled = self.settled.are_until(number.told);
            let flat = settled && self.is_flat(block, sequence, call);
            let (way, mine) = match flat {
                true => (Way::Flat, call.mine),
                // My own flag, for members that look for who is absent.
                false => (Way::Led, &[][..]),
            };
            let said = block.arrive(sequence, signature, (way, number.history), mine);
            let tell = |waited| self.tell_absent(waited, signature, block, sequence);
            let patience = Patience::for_neighbours().telling(&tell);
            let come = block.wait_members(
                sequence,
                (&self.limits, patience),
                || self.peers.worker().help_messages(),
                |member| self.look_back(block, number, member),
            );
            trouble = match come.map_err(|error| self.explain(error, block, sequence, signature)) {
                Ok(()) if flat && block.agree(sequence, said) => {
                    self.settled.now_until(sequence);
                    return Ok((self.combine_node(Some(block), sequence, call), Known::ToAll));
                }
                Ok(()) => {
                    let text = self.disagreement(block, number, signature);
                    text.map(Trouble::mismatch)
                }
                // The other nodes are told.
                Err(error) if error.kind() == ErrorKind::Timeout && self.nodes.count() > 1 => {
                    Some(Trouble::late(&error))
                }
                Err(error) => return Err(error),
            };
        }
        let data = match trouble {
            None => self.combine_node(block, sequence, call),
            Some(_) => Bytes::new(),
        };
        let Some(began) = began else {
            return trouble.map_or(Ok((data, Known::ToLeader)), |trouble| Err(trouble.error()));
        };
        let (data, combine) = (data.into_vec(), call.combine);
        self.through_tree(sequence, signature, (began, trouble), data, combine)
            .map(|data| (Bytes::from_vec(data), Known::ToLeader))
    }

    /// Levels of the tree of nodes below its root.
    fn levels(&self) -> u32 {
        self.nodes.count().next_power_of_two().trailing_zeros()
    }

    /// How long to wait for the word of somebody who waits for others, who wait for others: one who
    /// gives up says so, and that word takes a while through so many ranks.
    fn grace(&self, ranks: u32) -> Duration {
        match self.nodes.count() {
            1 => Duration::ZERO,
            _ => ranks * (self.limits.timeout().unwrap_or_default() / 4).min(GRACE),
        }
    }

    fn patience_with(&self, ranks: u32) -> Patience<'static> {
        match self.nodes.count() {
            1 => Patience::for_neighbours(),
            _ => Patience::from(Instant::now(), self.grace(ranks)),
        }
    }

    /// Combines the contributions of this node's ranks.
    fn combine_node(&self, block: Option<&Block>, sequence: u32, call: Calls<'_>) -> Bytes {
        let me = self.nodes.my_place();
        let contribution = |member| match block {
            Some(block) if member != me => block.contribution(member, sequence),
            _ => call.mine,
        };
        let mut members = 0..block.map_or(1, Block::members);
        let mut data = Bytes::new();
        match call.combine {
            Combine::Nothing => {}
            Combine::Concat => {
                members.for_each(|member| data.extend_from_slice(contribution(member)))
            }
            Combine::Root(root) => {
                if let Some(root) = self.nodes.place_of(root.rank) {
                    data.extend_from_slice(contribution(root));
                }
            }
            Combine::Reduce(op, _) => {
                members.next();
                data.extend_from_slice(contribution(0));
                members.for_each(|member| op(&mut data, contribution(member)));
            }
        }
        data
    }

    /// The leaders' part: a binomial tree over the nodes, rooted at node 0. Ranks that do not come
    /// are waited for since `began`.
    fn through_tree(
        &self,
        sequence: u32,
        signature: &Signature,
        (began, mut trouble): (Instant, Option<Trouble>),
        data: Vec<u8>,
        combine: &Combine<'_>,
    ) -> Result<Vec<u8>> {
        let node = self.nodes.my_node();
        let mut parts = vec![(node, data)];
        let Tree { parent, children } = self.nodes.tree(0);
        for (child, levels) in children.iter().zip(1..) {
            let tell = |waited| self.tell(waited, signature, &self.leader_text(*child));
            let patience = Patience::from(began, self.grace(levels)).telling(&tell);
            let up: Up = match self.receive(*child, sequence, signature, patience) {
                Err(error) if error.kind() == ErrorKind::Timeout => {
                    trouble.get_or_insert(Trouble::late(&error));
                    continue;
                }
                up => up?,
            };
            self.hear(*child, &up, signature, &mut trouble);
            if trouble.is_none() && !combine_parts(&mut parts, up.parts, combine) {
                return Err(self.garbled(*child, signature));
            }
        }
        if trouble.is_some() {
            parts.clear();
        }
        let down = if let Some(parent) = parent {
            let up = self.up(signature, trouble, parts);
            self.send(parent, sequence, &up)?;
            let tell = |waited| {
                let whom = format!("the word of {}", self.leader_text(parent));
                self.tell(waited, signature, &whom);
            };
            let patience = Patience::from(began, self.grace(2 * self.levels() + 1)).telling(&tell);
            match self.receive(parent, sequence, signature, patience) {
                Err(error) if error.kind() == ErrorKind::Timeout => Down {
                    place: up.place,
                    trouble: up.trouble.or_else(|| Some(Trouble::late(&error))),
                    data: Vec::new(),
                },
                down => {
                    let down: Down = down?;
                    self.hear_down(parent, signature, &down);
                    Down {
                        place: up.place,
                        ..down
                    }
                }
            }
        } else {
            Down {
                place: signature.place().to_string(),
                trouble,
                data: by_rank(&self.nodes, parts, combine)
                    .ok_or_else(|| self.garbled(node, signature))?,
            }
        };
        for &child in &children {
            self.send(child, sequence, &down)?;
        }
        down.trouble
            .map_or(Ok(down.data), |trouble| Err(trouble.error()))
    }

    /// What this leader says to its parent.
    fn up(
        &self,
        signature: &Signature,
        trouble: Option<Trouble>,
        parts: Vec<(usize, Vec<u8>)>,
    ) -> Up {
        Up {
            rank: self.rank,
            signature: *signature,
            place: signature.place().to_string(),
            trouble,
            parts,
        }
    }

    /// Notes the trouble that a child tells of, or that it calls something else, if it is the first.
    fn hear(&self, child: usize, up: &Up, signature: &Signature, trouble: &mut Option<Trouble>) {
        self.note(child, &up.signature, &up.place);
        if trouble.is_some() {
            return;
        }
        trouble.clone_from(&up.trouble);
        if trouble.is_none() && up.signature != *signature {
            *trouble = Some(Trouble::mismatch(mismatch(
                (self.rank, signature, &signature.place().to_string()),
                (up.rank, &up.signature, &up.place),
            )));
        }
    }

    /// The parent has called the same, if all agree.
    fn hear_down(&self, parent: usize, signature: &Signature, down: &Down) {
        if down.trouble.is_none() {
            self.note(parent, signature, &down.place);
        }
    }

    /// What has come from below `node` is no contribution to this collective.
    #[cold]
    fn garbled(&self, node: usize, signature: &Signature) -> Error {
        let leader = self.nodes.leader_of(node);
        let text = format!("{signature}: garbled contributions from rank {leader} or below it");
        Error::new(ErrorKind::Ucx, text).with_peer(leader)
    }

    fn send<M: Serialize>(&self, node: usize, sequence: u32, message: &M) -> Result<()> {
        let leader = self.nodes.leader_of(node);
        let bytes = ucxrun::codec::encode(message)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        let endpoint = self.peers.for_messages(leader)?;
        self.sends();
        self.peers
            .worker()
            .send(
                endpoint,
                tag(self.team, self.nodes.my_node(), sequence),
                bytes,
            )
            .map_err(|error| error.context(format!("message to rank {leader}")))
    }

    fn receive<M: serde::de::DeserializeOwned>(
        &self,
        node: usize,
        sequence: u32,
        signature: &Signature,
        patience: Patience<'_>,
    ) -> Result<M> {
        let leader = self.nodes.leader_of(node);
        // Contributions of all ranks at the most, and their framing.
        let limit = super::node::RESULT + self.nodes.count() * 64 + TEXT + LIMIT;
        let bytes = self
            .peers
            .worker()
            .receive(tag(self.team, node, sequence), limit, patience)
            .map_err(|error| match error.kind() {
                ErrorKind::Timeout => Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "{signature}: {} did not come within {:?}",
                        self.leader_text(node),
                        self.limits.timeout().unwrap_or_default()
                    ),
                )
                .with_peer(leader),
                _ => error.context(format!("{signature}: message from rank {leader}")),
            })?;
        self.has_received();
        decode(&bytes, limit, leader).map_err(|error| error.context(signature))
    }
}

/// Node and bytes: what its ranks contribute, or with [`Combine::Nothing`] and what combines all there is.
type Part = (usize, Vec<u8>);

/// Adds a child's parts to mine; whether they fit. The child's nodes come after mine, so order is kept.
fn combine_parts(parts: &mut Vec<Part>, more: Vec<Part>, combine: &Combine<'_>) -> bool {
    match combine {
        Combine::Nothing => {}
        Combine::Concat => parts.extend(more),
        Combine::Root(_) => {
            for (node, bytes) in more {
                if !bytes.is_empty() {
                    parts[0] = (node, bytes);
                }
            }
        }
        Combine::Reduce(op, _) => {
            for (_, bytes) in more {
                if bytes.len() != parts[0].1.len() {
                    return false;
                }
                op(&mut parts[0].1, &bytes);
            }
        }
    }
    true
}

/// The parts of all nodes as one result, in rank order; None unless each node has one, of one length a rank.
fn by_rank(nodes: &Nodes, mut parts: Vec<Part>, combine: &Combine<'_>) -> Option<Vec<u8>> {
    if !matches!(combine, Combine::Concat) {
        return Some(parts.pop().map(|(_, bytes)| bytes).unwrap_or_default());
    }
    if parts.is_empty() {
        // There is no result.
        return Some(Vec::new());
    }
    parts.sort_unstable_by_key(|(node, _)| *node);
    let total: usize = parts.iter().map(|(_, bytes)| bytes.len()).sum();
    let ranks: usize = (0..nodes.count())
        .map(|node| nodes.members_of(node).len())
        .sum();
    let each = total / ranks;
    let mut result = vec![0; total];
    let all = parts.iter().map(|(node, _)| *node).eq(0..nodes.count());
    for (node, bytes) in parts.iter().filter(|_| all) {
        let members = nodes.members_of(*node);
        if bytes.len() != members.len() * each {
            return None;
        }
        for (place, &rank) in members.iter().enumerate() {
            result[rank * each..(rank + 1) * each]
                .copy_from_slice(&bytes[place * each..(place + 1) * each]);
        }
    }
    all.then_some(result)
}

/// What the leader says of a meeting: if it is bad, the rank that is to blame, and a text.
fn outcome(verdict: Verdict, data: &[u8]) -> Result<()> {
    let kind = match verdict {
        Verdict::Good => return Ok(()),
        Verdict::Late => ErrorKind::Timeout,
        Verdict::Mismatch => ErrorKind::Mismatch,
        Verdict::Failed => ErrorKind::PeerFailed,
    };
    let Some((peer, text)) = data.split_first_chunk() else {
        return Err(text_error(kind, data));
    };
    let error = text_error(kind, text);
    Err(match u32::from_le_bytes(*peer) {
        NOBODY => error,
        peer => error.with_peer(peer as usize),
    })
}

/// In the place of a rank's number.
const NOBODY: u32 = u32::MAX;

/// The leader says so to its members.
fn release_with(block: &Block, sequence: u32, error: &Error) {
    let verdict = match error.kind() {
        ErrorKind::Mismatch => Verdict::Mismatch,
        ErrorKind::Timeout => Verdict::Late,
        _ => Verdict::Failed,
    };
    let peer = error.peer().and_then(|peer| u32::try_from(peer).ok());
    let mut data = peer.unwrap_or(NOBODY).to_le_bytes().to_vec();
    let text = error.to_string();
    data.extend_from_slice(&text.as_bytes()[..text.len().min(TEXT)]);
    block.release(sequence, verdict, &data);
}

fn decode<M: serde::de::DeserializeOwned>(bytes: &[u8], limit: usize, leader: usize) -> Result<M> {
    ucxrun::codec::decode(bytes, limit).map_err(|error| {
        let text = format!("message from rank {leader}: {error}");
        Error::new(ErrorKind::Mismatch, text)
    })
}

fn text_error(kind: ErrorKind, text: &[u8]) -> Error {
    Error::new(kind, String::from_utf8_lossy(text))
}

/// Tag of a message from the leader of `node` of a team in meeting `sequence`: 15 bits, 17 and 28.
fn tag(team: u32, node: usize, sequence: u32) -> u64 {
    u64::from(team) << 45 | (node as u64) << 28 | u64::from(sequence & ((1 << 28) - 1))
}
