//! Meetings that a rank has come to and does not wait in: the non-blocking barrier.
//!
//! They are held one after another, in the order in which all ranks call them, and before any
//! meeting that is called later: whoever comes to that has come to these. Whoever waits for
//! anything pushes them on, as far as that is possible without waiting.

use super::{Down, Engine, LIMIT, Number, Trouble, Up, after, decode, tag};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{Pump, Tags};
use crate::wait::nap_beside;
use crate::world::node::{Block, Verdict, Way};
use crate::world::signature::Signature;
use crate::world::{Core, Pending};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Duration;

/// Longest sleep between two looks.
const NAP: Duration = Duration::from_millis(1);

/// The deferred meetings of a rank.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In their order; the first one may be under way.
    meetings: VecDeque<Meeting>,
    /// Meetings called so far, and those that are over.
    called: u64,
    over: u64,
    /// How those ended that did not end well.
    errors: HashMap<u64, Error>,
}

#[derive(Debug)]
struct Meeting {
    signature: Signature,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Called,
    /// This rank has come to the meeting of that number.
    Come(u32),
    /// As a node's leader, all of whose members have come.
    Tree(u32, Tree),
}

/// Where a leader is in the tree of nodes.
#[derive(Debug)]
struct Tree {
    trouble: Option<Trouble>,
    /// Children whose word has not come.
    children: Vec<usize>,
    told_parent: bool,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.meetings.is_empty()
    }

    /// The number of the meeting that this rank has come to and that is not over.
    fn come_to(&self) -> Option<u32> {
        match self.meetings.front()?.stage {
            Stage::Come(sequence) => Some(sequence),
            Stage::Called | Stage::Tree(..) => None,
        }
    }
}

impl Engine {
    /// This rank comes to a meeting without waiting for the others; its number among such.
    fn call(&self, signature: Signature) -> Result<u64> {
        self.limits.check()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &state.broken {
            return Err(after(error, &signature));
        }
        // Puts of this rank are in place before it has come.
        self.peers.worker().flush()?;
        let number = state.deferred.called;
        state.deferred.called += 1;
        state.deferred.meetings.push_back(Meeting {
            signature,
            stage: Stage::Called,
        });
        self.push_on(&mut state)?;
        Ok(number)
    }

    /// Holds all deferred meetings, waiting for them. With the state locked.
    pub(super) fn hold_deferred(&self, state: &mut super::State) -> Result<()> {
        let mut patience = self.patience_with(2 * self.levels() + 2);
        while !state.deferred.is_empty() {
            self.push_on(state)?;
            if state.deferred.is_empty() {
                break;
            }
            // Others may wait for a message of this rank before they come.
            let helps = self.peers.worker().help_messages()?;
            match patience.pause(&self.limits) {
                Ok(None) => {}
                Ok(Some(nap)) => self.sleep_in(state.deferred.come_to(), helps, nap)?,
                Err(error) => return Err(self.too_long(state, error)),
            }
        }
        Ok(())
    }

    /// Sleeps until meeting `sequence`, to which this rank has come, may have gone on; for `nap` at
    /// most. `helps` says whether messages are under way, too.
    fn sleep_in(&self, sequence: Option<u32>, helps: bool, nap: Duration) -> Result<()> {
        match (&self.block, sequence) {
            (Some(block), Some(sequence)) if self.nodes.count() == 1 => {
                block.sleep_in(sequence, nap_beside(helps, nap));
                Ok(())
            }
            // Members are told through memory, leaders by messages.
            _ => self.peers.worker().sleep(nap.min(NAP)),
        }
    }

    /// Why the first deferred meeting is not over; there are none after that.
    fn too_long(&self, state: &mut super::State, error: Error) -> Error {
        let error = match (state.deferred.meetings.front(), &self.block) {
            (
                Some(Meeting {
                    signature,
                    stage: Stage::Come(sequence),
                }),
                Some(block),
            ) => self.explain(error, block, *sequence, signature),
            (Some(Meeting { signature, .. }), _) if error.kind() == ErrorKind::Timeout => {
                let limit = self.limits.timeout().unwrap_or_default();
                let text = format!("{signature}: other nodes did not come within {limit:?}");
                Error::new(ErrorKind::Timeout, text)
            }
            _ => error,
        };
        state.broken.get_or_insert_with(|| error.clone());
        error
    }

    /// Goes on with deferred meetings, as far as that is possible without waiting.
    fn push_on(&self, state: &mut super::State) -> Result<()> {
        while let Some(meeting) = state.deferred.meetings.front_mut() {
            if let Stage::Called = meeting.stage {
                state.sequence = state.sequence.wrapping_add(1);
                if let Some(block) = &self.block {
                    let led = (Way::Led, state.history);
                    block.arrive(state.sequence, &meeting.signature, led, &[]);
                }
                meeting.stage = Stage::Come(state.sequence);
            }
            let number = Number {
                this: state.sequence,
                told: state.told,
                history: state.history,
            };
            let Some(outcome) = self.step(meeting, number)? else {
                return Ok(());
            };
            state.is_over();
            if let Err(error) = outcome {
                state.deferred.errors.insert(state.deferred.over, error);
            }
            state.deferred.over += 1;
            state.deferred.meetings.pop_front();
        }
        Ok(())
    }

    /// How a meeting that this rank has come to ended; None if it goes on.
    fn step(&self, meeting: &mut Meeting, number: Number) -> Result<Option<Result<()>>> {
        let signature = meeting.signature;
        if let Stage::Come(sequence) = meeting.stage {
            if let Some(block) = &self.block {
                if self.nodes.my_place() != 0 {
                    return Ok(block.look_release(sequence, super::outcome));
                }
                let mut absent = block.absent(sequence).peekable();
                if absent.peek().is_some() {
                    let stuck = absent.find_map(|rank| self.look_back(block, number, rank).err());
                    return Ok(stuck.map(|error| {
                        super::release_with(block, sequence, &error);
                        Err(error)
                    }));
                }
            }
            let block = self.block.as_deref();
            let trouble = block
                .and_then(|block| self.disagreement(block, number, &signature))
                .map(Trouble::mismatch);
            let tree = Tree {
                trouble,
                children: self.nodes.tree(0).children,
                told_parent: false,
            };
            meeting.stage = Stage::Tree(sequence, tree);
        }
        let Stage::Tree(sequence, tree) = &mut meeting.stage else {
            return Ok(None);
        };
        let Some(down) = self.through_tree_by_steps(*sequence, &signature, tree)? else {
            return Ok(None);
        };
        let outcome = down.trouble.map_or(Ok(()), |trouble| Err(trouble.error()));
        if let Some(block) = &self.block {
            release(block, *sequence, &outcome);
        }
        Ok(Some(outcome))
    }

    /// What comes down the tree, once it has; see [`Engine::through_tree`].
    fn through_tree_by_steps(
        &self,
        sequence: u32,
        signature: &Signature,
        tree: &mut Tree,
    ) -> Result<Option<Down>> {
        if self.nodes.count() > 1 {
            self.peers.worker().progress()?;
        }
        let mut waiting = Vec::new();
        for child in std::mem::take(&mut tree.children) {
            let Some(up) = self.look_for::<Up>(child, sequence)? else {
                waiting.push(child);
                continue;
            };
            self.hear(child, &up, signature, &mut tree.trouble);
        }
        tree.children = waiting;
        if !tree.children.is_empty() {
            return Ok(None);
        }
        let place = self.nodes.tree(0);
        let down = match place.parent {
            None => Down {
                place: signature.place().to_string(),
                trouble: tree.trouble.take(),
                data: Vec::new(),
            },
            Some(parent) => {
                if !tree.told_parent {
                    tree.told_parent = true;
                    let up = self.up(signature, tree.trouble.take(), Vec::new());
                    self.send(parent, sequence, &up)?;
                }
                match self.look_for::<Down>(parent, sequence)? {
                    Some(down) => {
                        self.hear_down(parent, signature, &down);
                        let place = signature.place().to_string();
                        Down { place, ..down }
                    }
                    None => return Ok(None),
                }
            }
        };
        for child in place.children {
            self.send(child, sequence, &down)?;
        }
        Ok(Some(down))
    }

    /// The message of `node`'s leader, if it has come.
    fn look_for<M: serde::de::DeserializeOwned>(
        &self,
        node: usize,
        sequence: u32,
    ) -> Result<Option<M>> {
        let tags = Tags {
            tag: tag(self.team, node, sequence),
            mask: u64::MAX,
        };
        let Some((_, mut message)) = self.peers.worker().take_message(tags, LIMIT)? else {
            return Ok(None);
        };
        let leader = self.nodes.leader_of(node);
        let bytes = message.wait()?;
        self.has_received();
        decode(&bytes, LIMIT, leader).map(Some)
    }
}

fn release(block: &Block, sequence: u32, outcome: &Result<()>) {
    match outcome {
        Ok(()) => block.release(sequence, Verdict::Good, &[]),
        Err(error) => super::release_with(block, sequence, error),
    }
}

/// A barrier that this rank has come to.
#[derive(Debug)]
pub(in crate::world) struct Deferred {
    core: Arc<Core>,
    number: u64,
}

impl Deferred {
    pub(in crate::world) fn start(core: &Arc<Core>, signature: Signature) -> Result<Arc<Self>> {
        core.check()?;
        let this = Arc::new(Self {
            core: core.clone(),
            number: core.engine.call(signature)?,
        });
        let pump: Arc<dyn Pump> = this.clone();
        core.worker.add_pump(Arc::downgrade(&pump));
        Ok(this)
    }

    /// What all have done, as far as is known now, comes before what this rank does.
    fn hear(&self) -> Result<()> {
        match self.core.races() {
            Some(races) => races.hear_team(&self.core),
            None => Ok(()),
        }
    }

    /// How it ended, if it has. With the state locked.
    fn outcome(&self, state: &mut super::State) -> Option<Result<()>> {
        if self.number >= state.deferred.over {
            return None;
        }
        Some(match state.deferred.errors.remove(&self.number) {
            Some(error) => Err(error),
            None => Ok(()),
        })
    }
}

impl Pump for Deferred {
    fn pump(&self) -> bool {
        // Else another thread is in a meeting, which comes after this one.
        if let Ok(mut state) = self.core.engine.state.try_lock()
            && let Err(error) = self.core.engine.push_on(&mut state)
        {
            state.broken.get_or_insert(error);
        }
        false
    }
}

impl Pending<()> for Arc<Deferred> {
    fn is_done(&mut self) -> Result<bool> {
        let engine = &self.core.engine;
        let mut state = match engine.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        engine.push_on(&mut state)?;
        let done = self.number < state.deferred.over;
        drop(state);
        if done {
            self.hear()?;
        }
        Ok(done)
    }

    fn wait(self: Box<Self>) -> Result<()> {
        let engine = &self.core.engine;
        // It is pushed on here, and is not what others would have to help.
        let pump: Arc<dyn Pump> = (*self).clone();
        engine.peers.worker().drop_pump(&Arc::downgrade(&pump));
        let mut patience = engine.patience_with(2 * engine.levels() + 2);
        loop {
            let (outcome, sequence) = {
                let state = engine.state.lock();
                let mut state = state.unwrap_or_else(PoisonError::into_inner);
                if let Some(error) = &state.broken {
                    return Err(error.clone());
                }
                engine.push_on(&mut state)?;
                (self.outcome(&mut state), state.deferred.come_to())
            };
            if let Some(outcome) = outcome {
                return outcome.and_then(|()| self.hear());
            }
            let helps = engine.peers.worker().help_messages()?;
            match patience.pause(&engine.limits) {
                Ok(None) => {}
                Ok(Some(nap)) => engine.sleep_in(sequence, helps, nap)?,
                Err(error) => {
                    let state = engine.state.lock();
                    let mut state = state.unwrap_or_else(PoisonError::into_inner);
                    return Err(engine.too_long(&mut state, error));
                }
            }
        }
    }
}
