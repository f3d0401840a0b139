//! Large collectives: what a node's ranks have passes over the [`Stage`] in windows, and the
//! nodes' leaders exchange messages.

use super::pieces;
use crate::dist;
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Patience;
use crate::world::Core;
use crate::world::engine::{Combine, or_break};
use crate::world::signature::Signature;
use crate::world::stage::{Stage, Window};
use std::ops::Range;

/// What a rank does with windows.
pub(super) trait Show {
    /// Writes this rank's part of a window, if it has one: bytes `range` of what it has.
    fn fill(&mut self, range: Range<usize>, window: Window<'_>) -> Result<()>;
    /// Takes what it wants of the others' parts. May meet again, through [`Core::meet_on`].
    fn take(&mut self, range: Range<usize>, window: Window<'_>, stage: &Stage) -> Result<()>;
}

/// [`Show`] by two functions that have nothing in common.
pub(super) struct Shower<F, T>(pub(super) F, pub(super) T);

impl<F, T> Show for Shower<F, T>
where
    F: FnMut(Range<usize>, Window<'_>) -> Result<()>,
    T: FnMut(Range<usize>, Window<'_>) -> Result<()>,
{
    fn fill(&mut self, range: Range<usize>, window: Window<'_>) -> Result<()> {
        self.0(range, window)
    }

    fn take(&mut self, range: Range<usize>, window: Window<'_>, _: &Stage) -> Result<()> {
        self.1(range, window)
    }
}

/// How the first window's meeting is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// All ranks of the team meet, and find out whether they call the same.
    Meet,
    /// They have met.
    Met,
}

impl Core {
    /// The stage, made at its first use. All ranks are known to come: they have met, or `first`
    /// says how.
    #[track_caller]
    pub(super) fn stage(&self, signature: &Signature, first: &mut First) -> Result<&Stage> {
        if let Some(stage) = self.stage.get() {
            return Ok(stage);
        }
        if *first == First::Meet {
            self.barrier_in_turn(signature)?;
            *first = First::Met;
        }
        let stage = Stage::allocate(self)?;
        Ok(self.stage.get_or_init(|| stage))
    }

    /// All ranks of this node show each other their bytes, in windows of whole multiples of `unit`
    /// bytes; the longest has `longest`.
    ///
    /// Collective in the node, or, with [`First::Meet`], in the team. The caller has the turn.
    ///
    /// # Errors
    /// As a barrier; what `show` returns, after which no collective succeeds any more.
    #[track_caller]
    pub(super) fn staged(
        &self,
        signature: &Signature,
        mut first: First,
        (longest, unit): (usize, usize),
        show: &mut impl Show,
    ) -> Result<()> {
        let stage = self.stage(signature, &mut first)?;
        let step = stage.window() / unit * unit;
        if step == 0 {
            self.barrier_in_turn(signature)?; // The same on all ranks.
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{signature}: elements of {unit} bytes, {} at most",
                    stage.window()
                ),
            ));
        }
        // Others may still read what this rank showed in a collective that failed here.
        self.engine.check(signature)?;
        for (from, to) in pieces(longest, step) {
            let window = stage.next();
            let pass = || {
                show.fill(from..to, window)?;
                match std::mem::replace(&mut first, First::Met) {
                    First::Meet => {
                        let nothing = Combine::Nothing;
                        self.engine.exchange(signature, &[], &nothing, |_| ())?;
                    }
                    First::Met => self.meet_on(stage, signature)?,
                }
                show.take(from..to, window, stage)
            };
            let outcome = or_break(pass, |error| self.engine.give_up(&error));
            if let Err(error) = outcome {
                if error.kind() != ErrorKind::Mismatch {
                    self.engine.give_up(&error);
                }
                return Err(error);
            }
            stage.turn_over();
        }
        Ok(())
    }

    /// The ranks of this node meet.
    pub(super) fn meet_on(&self, stage: &Stage, signature: &Signature) -> Result<()> {
        let tell = |waited| {
            let absent = stage.absent().map(|member| self.nodes.mine()[member]);
            let ranks: Vec<_> = absent.map(|rank| self.peers.world_rank(rank)).collect();
            self.engine
                .tell(waited, signature, &format!("ranks {ranks:?}"));
        };
        let patience = Patience::for_neighbours().telling(&tell);
        stage
            .meet((&self.limits, patience), || self.worker.help_messages())
            .map_err(|error| {
                if error.kind() != ErrorKind::Timeout {
                    return error.context(signature);
                }
                let absent = stage
                    .absent()
                    .map(|member| self.nodes.mine()[member].to_string());
                let absent: Vec<_> = absent.collect();
                let limit = self.limits.timeout().unwrap_or_default();
                Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "{signature}: rank {} did not come within {limit:?}",
                        absent.join(", ")
                    ),
                )
            })
    }

    /// What ranks of all nodes show, as far as this node's leader gets it: `lens` by rank. Calls
    /// `take` on each rank with where something begins in the bytes of a rank, and the bytes.
    ///
    /// Collective. The caller has the turn.
    #[track_caller]
    pub(super) fn show_all(
        &self,
        signature: &Signature,
        mine: &[u8],
        len_of: &dyn Fn(usize) -> usize,
        mut take: impl FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        let members = self.nodes.mine();
        let lens: Vec<usize> = members.iter().map(|&rank| len_of(rank)).collect();
        let longest = lens.iter().copied().max().unwrap_or(0);
        let leads = self.nodes.my_place() == 0;
        let several = self.nodes.count() > 1;
        let total: usize = lens.iter().sum();
        let mut node = vec![0; if leads && several { total } else { 0 }];
        let starts = dist::starts(&lens);
        let mut first = First::Meet;
        if several {
            // Ranks of other nodes may have more windows.
            self.barrier_in_turn(signature)?;
            first = First::Met;
        }
        self.staged(
            signature,
            first,
            (longest, 1),
            &mut Shower(
                |range: Range<usize>, window: Window<'_>| {
                    window.show(0, overlap(mine, &range));
                    Ok(())
                },
                |range: Range<usize>, window: Window<'_>| {
                    for (member, &rank) in members.iter().enumerate() {
                        let len = lens[member].saturating_sub(range.start).min(range.len());
                        if len == 0 {
                            continue;
                        }
                        let bytes = window.of(member, 0..len);
                        take(rank, range.start, bytes);
                        if !node.is_empty() {
                            let at = starts[member] + range.start;
                            node[at..at + len].copy_from_slice(bytes);
                        }
                    }
                    Ok(())
                },
            ),
        )?;
        if !several {
            return Ok(());
        }
        // The leaders tell each other what their nodes have, then their nodes what the others have.
        let nodes = self.nodes.count();
        let ranks: Vec<usize> = (0..nodes)
            .flat_map(|node| self.nodes.members_of(node).iter().copied())
            .collect();
        let lens: Vec<usize> = ranks.iter().map(|&rank| len_of(rank)).collect();
        let by_node = |node: usize| {
            self.nodes
                .members_of(node)
                .iter()
                .map(|&rank| len_of(rank))
                .sum()
        };
        let node_lens: Vec<usize> = (0..nodes).map(by_node).collect();
        let part = self.next_part();
        let mut all = Vec::new();
        if leads {
            all = self
                .leaders_all_gather(part, node, &node_lens)
                .inspect_err(|error| self.engine.give_up(error))?;
        }
        let total: usize = node_lens.iter().sum();
        let starts = dist::starts(&lens);
        self.staged(
            signature,
            First::Met,
            (total, 1),
            &mut Shower(
                |range: Range<usize>, window: Window<'_>| {
                    if leads {
                        window.show(0, &all[range]);
                    }
                    Ok(())
                },
                |range: Range<usize>, window: Window<'_>| {
                    for (k, &rank) in ranks.iter().enumerate() {
                        if self.nodes.place_of(rank).is_some() {
                            continue;
                        }
                        let (start, end) = (starts[k], starts[k] + lens[k]);
                        let (from, to) = (start.max(range.start), end.min(range.end));
                        if from < to {
                            let bytes = window.of(0, from - range.start..to - range.start);
                            take(rank, from - start, bytes);
                        }
                    }
                    Ok(())
                },
            ),
        )
    }

    /// The bytes of rank `root`, `len` of them, on all ranks, passed to `take` with where they
    /// begin. Collective; the caller has the turn.
    #[track_caller]
    pub(super) fn show_one(
        &self,
        signature: &Signature,
        root: usize,
        mine: &[u8],
        len: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let mut first = First::Meet;
        let several = self.nodes.count() > 1;
        if several {
            self.barrier_in_turn(signature)?;
            first = First::Met;
        }
        let part = self.next_part();
        let root_node = self.nodes.node_of(root);
        let here = root_node == self.nodes.my_node();
        let leads = self.nodes.my_place() == 0;
        // Its node's leader stands for a root on another node.
        let shower = self.nodes.place_of(root).unwrap_or(0);
        self.staged(
            signature,
            first,
            (len, 1),
            &mut Shower(
                |range: Range<usize>, window: Window<'_>| {
                    if self.rank == root {
                        window.show(0, &mine[range]);
                    } else if leads && !here {
                        let mut bytes = vec![0; range.len()];
                        self.leaders_broadcast(part, root_node, &mut bytes)?;
                        window.show(0, &bytes);
                    }
                    Ok(())
                },
                |range: Range<usize>, window: Window<'_>| {
                    let bytes = window.of(shower, 0..range.len());
                    if several && leads && here {
                        self.leaders_broadcast(part, root_node, &mut bytes.to_vec())?;
                    }
                    if self.rank != root {
                        take(range.start, bytes);
                    }
                    Ok(())
                },
            ),
        )
    }
}

/// What of `bytes` is in `range`.
pub(super) fn overlap<'a>(bytes: &'a [u8], range: &Range<usize>) -> &'a [u8] {
    let end = range.end.min(bytes.len());
    &bytes[range.start.min(end)..end]
}
