//! Ghost cells: copies of neighbours' elements around a rank's own.
//!
//! An exchange: each rank packs the cells that a neighbour needs into one message and puts it to
//! the neighbour's *stage*, a part of its memory behind its elements; all meet; each rank unpacks
//! its stage into its ghost cells. There are two stages, used in turn, so that one meeting is
//! enough: who puts to a stage again has met everybody since it was unpacked.
//!
//! The reverse packs ghost cells into the own stage, meets, and reads the neighbours' stages.
//!
//! What goes where follows from the layout, and each rank finds it out for itself.

#![expect(unsafe_code, reason = "copies in this rank's own memory")]

use super::section::{load_rows, store_row};
use super::{Boundary, GlobalArray, LocalView};
use crate::dist::{Layout, Patch};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Operator;
use crate::window;
use crate::world::{Call, Signature};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};

/// What a rank gets from others and gives to them in an exchange.
#[derive(Debug)]
pub(super) struct Halo<const D: usize> {
    /// By rank, into ghost cells.
    receives: Vec<Message<D>>,
    /// By rank, out of own cells.
    sends: Vec<Message<D>>,
    /// Ghost cells that get a fixed value, that of this dimension.
    fixed: Vec<(usize, Patch<D>)>,
    /// The stage of the next exchange.
    turn: usize,
    under_way: bool,
}

/// Cells that go from one rank to another.
#[derive(Clone, Debug)]
struct Message<const D: usize> {
    /// The other rank.
    rank: usize,
    /// Place of the message in the first stage of the rank that gets it, counted from the start
    /// of its memory; and the length of a stage there.
    at: usize,
    stage: usize,
    len: usize,
    /// Places in this rank's memory, in the order of the message.
    cells: Vec<Patch<D>>,
}

/// What an axis has beyond its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    Open,
    Periodic,
    Mirror,
    Fixed,
}

/// The geometry of an exchange, of which each rank's part follows.
pub(super) struct Geometry<'a, const D: usize> {
    layout: &'a Layout<D>,
    edges: [Edge; D],
    faces_only: bool,
}

/// Neighbouring cells along one axis of a part's memory, and where their values come from.
#[derive(Clone, Debug)]
struct Run {
    /// Places in the part's memory, ghost cells included.
    memory: Range<usize>,
    from: From,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// These are the part's own cells.
    Own,
    /// The cells of a part from this place on.
    Part(usize, usize),
    Fixed,
    Open,
}

/// Ghost cells of one rank that are a box, and where their values come from.
struct Box<const D: usize> {
    /// First cell in each dimension of the memory, and how many.
    memory: [usize; D],
    counts: [usize; D],
    source: Source<D>,
}

enum Source<const D: usize> {
    /// A rank's cells from these local indices on.
    Rank(usize, [usize; D]),
    /// The value of this dimension's boundary.
    Fixed(usize),
}

impl<'a, const D: usize> Geometry<'a, D> {
    /// None without ghost cells.
    pub(super) fn new<T>(
        layout: &'a Layout<D>,
        boundary: &[Boundary<T>; D],
        faces_only: bool,
    ) -> Option<Self> {
        let edges = boundary.each_ref().map(|boundary| match boundary {
            Boundary::Open => Edge::Open,
            Boundary::Periodic => Edge::Periodic,
            Boundary::Mirror => Edge::Mirror,
            Boundary::Fixed(_) => Edge::Fixed,
        });
        layout.has_halo().then_some(Self {
            layout,
            edges,
            faces_only,
        })
    }

    /// A number that tells geometries of one layout apart, and their fixed values.
    pub(super) fn fingerprint<T: Element>(&self, boundary: &[Boundary<T>; D]) -> u64 {
        let mut number = u64::from(self.faces_only);
        let mut add = |more: u64| {
            number = (number ^ more)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        };
        for (&edge, boundary) in self.edges.iter().zip(boundary) {
            add(edge as u64);
            if let Boundary::Fixed(value) = boundary {
                bytemuck::bytes_of(value)
                    .iter()
                    .for_each(|&byte| add(byte.into()));
            }
        }
        number
    }

    /// Elements that a rank's memory has for its stages.
    pub(super) fn stages_len(&self, rank: usize) -> usize {
        2 * self.stage_len(rank)
    }

    fn stage_len(&self, rank: usize) -> usize {
        let received = self.boxes(rank).into_iter().filter(Box::is_received);
        received.map(|cells| cells.len()).sum()
    }

    /// What `rank` does in an exchange.
    pub(super) fn of_rank(&self, rank: usize) -> Halo<D> {
        let fixed = self.boxes(rank).into_iter().filter_map(|cells| {
            let Source::Fixed(d) = cells.source else {
                return None;
            };
            Some((d, self.patch(rank, cells.memory, cells.counts, 0)))
        });
        let mut sends = Vec::new();
        for to in self.neighbours(rank) {
            for mut message in self.messages(to, Some(rank)) {
                message.rank = to;
                sends.push(message);
            }
        }
        Halo {
            receives: self.messages(rank, None),
            sends,
            fixed: fixed.collect(),
            turn: 0,
            under_way: false,
        }
    }

    /// The messages that `to` gets, by rank, with the cells where they go; or only the one from
    /// rank `only`, with the cells where they come from.
    fn messages(&self, to: usize, only: Option<usize>) -> Vec<Message<D>> {
        let mut by_rank: BTreeMap<usize, Vec<Box<D>>> = BTreeMap::new();
        for cells in self.boxes(to) {
            if let Source::Rank(from, _) = cells.source {
                by_rank.entry(from).or_default().push(cells);
            }
        }
        let lens = by_rank.values().flatten().map(Box::len);
        let stage = lens.sum();
        let mut at = self.layout.memory_len(to);
        let mut messages = Vec::new();
        for (from, boxes) in by_rank {
            let len = boxes.iter().map(Box::len).sum();
            if only.is_none_or(|only| only == from) {
                let mut place = 0;
                let cells = boxes.iter().map(|cells| {
                    let patch = match (only, &cells.source) {
                        (Some(_), Source::Rank(_, first)) => {
                            let halo = self.layout.halo();
                            let first = std::array::from_fn(|d| first[d] + halo[d]);
                            self.patch(from, first, cells.counts, place)
                        }
                        _ => self.patch(to, cells.memory, cells.counts, place),
                    };
                    place += cells.len();
                    patch
                });
                messages.push(Message {
                    rank: from,
                    at,
                    stage,
                    len,
                    cells: cells.collect(),
                });
            }
            at += len;
        }
        messages
    }

    /// A box of a rank's memory, packed from `at` on.
    fn patch(&self, rank: usize, first: [usize; D], counts: [usize; D], at: usize) -> Patch<D> {
        let strides = self.layout.strides(rank);
        let mut at_steps = [1; D];
        for d in (1..D).rev() {
            at_steps[d - 1] = at_steps[d] * counts[d];
        }
        Patch {
            rank,
            offset: (0..D).map(|d| first[d] * strides[d]).sum(),
            steps: strides.map(usize::cast_signed),
            counts,
            at,
            at_steps,
        }
    }

    /// The ghost cells of a rank that an exchange fills.
    fn boxes(&self, rank: usize) -> Vec<Box<D>> {
        let Some(parts) = self.layout.coordinates(rank) else {
            return Vec::new();
        };
        if self.layout.owned_len(rank) == 0 {
            return Vec::new();
        }
        let runs: [Vec<Run>; D] = std::array::from_fn(|d| self.runs(d, parts[d]));
        let mut boxes = Vec::new();
        let mut choice = [0; D];
        loop {
            let chosen: [&Run; D] = std::array::from_fn(|d| &runs[d][choice[d]]);
            boxes.extend(self.cells(parts, chosen));
            let lens = runs.each_ref().map(Vec::len);
            match super::index::successor(choice, lens) {
                Some(next) => choice = next,
                None => return boxes,
            }
        }
    }

    /// The box that is these runs, if an exchange fills it.
    fn cells(&self, parts: [usize; D], runs: [&Run; D]) -> Option<Box<D>> {
        let outside = runs.iter().filter(|run| run.from != From::Own).count();
        if outside == 0 || (self.faces_only && outside > 1) {
            return None;
        }
        if runs.iter().any(|run| run.from == From::Open) {
            return None;
        }
        let fixed = runs.iter().position(|run| run.from == From::Fixed);
        let source = match fixed {
            Some(d) => Source::Fixed(d),
            None => {
                let (mut from, mut first) = (parts, [0; D]);
                for d in 0..D {
                    if let From::Part(part, place) = runs[d].from {
                        (from[d], first[d]) = (part, place);
                    }
                }
                Source::Rank(self.layout.rank_at(from), first)
            }
        };
        Some(Box {
            memory: runs.map(|run| run.memory.start),
            counts: runs.map(|run| run.memory.len()),
            source,
        })
    }

    /// The runs of a part's memory along an axis: ghost cells below, own cells, ghost cells above.
    fn runs(&self, d: usize, part: usize) -> Vec<Run> {
        let axis = self.layout.axis(d);
        let (halo, count) = (axis.halo(), axis.count(part));
        let mut runs = self.ghosts(d, part, 0..halo);
        if count > 0 {
            runs.push(Run {
                memory: halo..halo + count,
                from: From::Own,
            });
        }
        runs.extend(self.ghosts(d, part, halo + count..count + 2 * halo));
        runs
    }

    /// The runs that some ghost cells of a part are.
    fn ghosts(&self, d: usize, part: usize, cells: Range<usize>) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut cell = cells.start;
        while cell < cells.end {
            let (from, len) = self.source(d, part, cell);
            let end = cells.end.min(cell.saturating_add(len));
            runs.push(Run {
                memory: cell..end,
                from,
            });
            cell = end;
        }
        runs
    }

    /// Where the value of a ghost cell comes from, and how many cells on the same is so.
    fn source(&self, d: usize, part: usize, cell: usize) -> (From, usize) {
        let axis = self.layout.axis(d);
        let start = axis.range(part).map_or(0, |range| range.start);
        let signed = |n: usize| n as i128;
        let index = signed(start) + signed(cell) - signed(axis.halo());
        let len = signed(axis.len());
        let outside = !(0..len).contains(&index);
        // Up to the first index inside, if there is one to come.
        let whole = usize::try_from(-index).unwrap_or(usize::MAX).max(1);
        let inside = match self.edges[d] {
            Edge::Open if outside => return (From::Open, whole),
            Edge::Fixed if outside => return (From::Fixed, whole),
            Edge::Periodic => index.rem_euclid(len),
            Edge::Mirror => {
                let index = index.rem_euclid(2 * len);
                index.min(2 * len - 1 - index)
            }
            _ => index,
        };
        let (part, place) = axis.locate(usize::try_from(inside).unwrap_or(0));
        let neighbours = match self.edges[d] {
            // The other way round: one by one.
            Edge::Mirror if outside => 1,
            _ => axis.count(part) - place,
        };
        (From::Part(part, place), neighbours)
    }

    /// The ranks that get something from `rank`, ascending; it may be among them.
    fn neighbours(&self, rank: usize) -> Vec<usize> {
        let Some(parts) = self.layout.coordinates(rank) else {
            return Vec::new();
        };
        // Also: an axis without indices has none that a ghost cell could stand for.
        if self.layout.owned_len(rank) == 0 {
            return Vec::new();
        }
        // Along each axis: the parts that have this one's cells as ghosts, and itself.
        let takers: [Vec<usize>; D] = std::array::from_fn(|d| {
            let takes = |&part: &usize| {
                part == parts[d]
                    || self
                        .runs(d, part)
                        .iter()
                        .any(|run| matches!(run.from, From::Part(of, _) if of == parts[d]))
            };
            (0..self.layout.axis(d).parts()).filter(takes).collect()
        });
        let mut ranks = Vec::new();
        let mut choice = [0; D];
        loop {
            ranks.push(
                self.layout
                    .rank_at(std::array::from_fn(|d| takers[d][choice[d]])),
            );
            let lens = takers.each_ref().map(Vec::len);
            match super::index::successor(choice, lens) {
                Some(next) => choice = next,
                None => break,
            }
        }
        ranks.sort_unstable();
        ranks
    }
}

impl<const D: usize> Box<D> {
    fn len(&self) -> usize {
        self.counts.iter().product()
    }

    fn is_received(&self) -> bool {
        matches!(self.source, Source::Rank(..))
    }
}

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Fills all ranks' ghost cells, without entering a mode. See [`LocalView::exchange`].
    ///
    /// Collective, and a [barrier](crate::Team::barrier): what was put before by any rank is in
    /// the ghost cells.
    ///
    /// # Errors
    /// [`ErrorKind::WrongMode`]; else as [`LocalView::exchange`].
    #[track_caller]
    pub fn exchange(&mut self) -> Result<()> {
        self.mode.check_open("exchange")?;
        self.meet(Call::Exchange, Step::First as usize)?;
        self.begin_exchange()?;
        self.finish_exchange()
    }

    #[track_caller]
    fn meet(&self, call: Call, detail: usize) -> Result<()> {
        let signature = Signature::new(call)
            .detail(detail)
            .count(window::index(self.window.id));
        self.window.core().barrier(&signature)
    }

    fn halo_for(&mut self, call: &str) -> Result<&mut Halo<D>> {
        let Some(halo) = &mut self.halo else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{call}: the array has no ghost cells"),
            ));
        };
        if halo.under_way {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{call}: an exchange is under way"),
            ));
        }
        Ok(halo)
    }

    #[track_caller]
    fn begin_exchange(&mut self) -> Result<()> {
        self.halo_for("exchange")?;
        if let Err(error) = self.send_cells() {
            // The others come to the meeting: there they get a mismatch, and no old values.
            let _ = self.meet(Call::Exchange, Step::Failed as usize);
            return Err(error);
        }
        if let Some(halo) = &mut self.halo {
            halo.under_way = true;
        }
        Ok(())
    }

    /// Puts what the neighbours need to their stages.
    fn send_cells(&self) -> Result<()> {
        let base = self.window.base();
        let Some(halo) = &self.halo else {
            return Ok(());
        };
        for message in &halo.sends {
            // SAFETY: the cells lie in this rank's memory.
            let values = unsafe { load_rows::<T, D>(base, &message.cells, message.len) }?;
            let at = message.at + halo.turn * message.stage;
            self.window.put_range(message.rank, at, &values)?;
        }
        Ok(())
    }

    #[track_caller]
    fn finish_exchange(&mut self) -> Result<()> {
        let met = self.meet(Call::Exchange, Step::Second as usize);
        let base = self.window.base();
        let Some(halo) = &mut self.halo else {
            return Ok(());
        };
        let turn = halo.turn;
        match met {
            // On all ranks alike, whatever becomes of the rest.
            Ok(()) => {
                halo.turn = 1 - turn;
                halo.under_way = false;
            }
            Err(error) => {
                // After a mismatch no rank looks at a stage: the next exchange writes to the same.
                halo.under_way = error.kind() != ErrorKind::Mismatch;
                return Err(error);
            }
        }
        for message in &halo.receives {
            let at = message.at + turn * message.stage;
            let stage = base.wrapping_add(at * size_of::<T>());
            // SAFETY: the message lies in a stage, which is in this rank's memory.
            let values = unsafe { element::load_vec::<T>(stage, message.len) }?;
            for row in message.cells.iter().flat_map(Patch::rows) {
                // SAFETY: the cells lie in this rank's memory.
                unsafe { store_row(&values, base, row) };
            }
        }
        for (d, patch) in &halo.fixed {
            if let Boundary::Fixed(value) = self.boundary[*d] {
                let values = vec![value; patch.len()];
                for row in patch.rows() {
                    // SAFETY: the cells lie in this rank's memory.
                    unsafe { store_row(&values, base, row) };
                }
            }
        }
        Ok(())
    }

    #[track_caller]
    fn accumulate<O: Operator<T>>(&mut self, op: O) -> Result<()> {
        self.halo_for("accumulate_halo")?;
        let operator = op.atomic_op() as usize;
        if let Err(error) = self.keep_ghosts() {
            let failed = Step::Failed as usize + operator;
            let _ = self.meet(Call::Accumulate, failed);
            return Err(error);
        }
        self.meet(Call::Accumulate, operator)?;
        let Some(halo) = &mut self.halo else {
            return Ok(());
        };
        let turn = halo.turn;
        // On all ranks alike, whatever becomes of the rest.
        halo.turn = 1 - turn;
        let base = self.window.base();
        for message in &halo.sends {
            let at = message.at + turn * message.stage;
            let theirs = self.window.get_range::<T>(message.rank, at, message.len)?;
            // One by one: cells of one message may be the same (mirrors).
            for row in message.cells.iter().flat_map(Patch::rows) {
                for k in 0..row.count {
                    let offset = row.offset.wrapping_add_signed(row.step * k.cast_signed());
                    let cell = base.wrapping_add(offset * size_of::<T>());
                    // SAFETY: the cell lies in this rank's memory.
                    let before = unsafe { element::load::<T>(cell) }?;
                    let after = op.combine(before, theirs[row.at + k * row.at_step]);
                    // SAFETY: as above.
                    unsafe { element::store(cell, after) };
                }
            }
        }
        Ok(())
    }

    /// Packs the ghost cells into this rank's own stage, for those whose elements they stand for.
    fn keep_ghosts(&self) -> Result<()> {
        let base = self.window.base();
        let Some(halo) = &self.halo else {
            return Ok(());
        };
        for message in &halo.receives {
            // SAFETY: the cells lie in this rank's memory.
            let values = unsafe { load_rows::<T, D>(base, &message.cells, message.len) }?;
            let at = message.at + halo.turn * message.stage;
            let stage = base.wrapping_add(at * size_of::<T>());
            // SAFETY: the message's place in a stage, which is in this rank's memory.
            unsafe { element::copy(stage, values.as_ptr().cast(), size_of_val(&values[..])) };
        }
        Ok(())
    }
}

/// What a rank says in the meetings of an exchange.
#[derive(Clone, Copy)]
enum Step {
    /// The meeting before, where the array is open.
    First = 1,
    /// Everything has been put.
    Second = 2,
    /// This rank could not: nobody must use what is there. Above any operator, too.
    Failed = 1000,
}

impl<'a, T: Element, const D: usize> LocalView<'a, T, D> {
    /// Fills the ghost cells of all ranks: with copies of the elements that they stand for, or
    /// with what the array's [boundary](crate::Builder::boundary) says. Corners too, unless the
    /// array was built [faces_only](crate::Builder::faces_only).
    ///
    /// Collective: all ranks must call it. What ranks wrote to their elements before it is what
    /// the others get.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the array has no ghost cells, or if an exchange is under
    /// way; else as [`Team::barrier`](crate::Team::barrier).
    #[track_caller]
    pub fn exchange(&mut self) -> Result<()> {
        self.array.begin_exchange()?;
        self.array.finish_exchange()
    }

    /// Starts an exchange: sends what the neighbours need. Until
    /// [`finish`](Exchange::finish) this rank may work on its own elements, read and write; its
    /// ghost cells are old.
    ///
    /// Collective at its end: see [`LocalView::exchange`].
    ///
    /// # Errors
    /// As [`LocalView::exchange`].
    pub fn exchange_begin(&mut self) -> Result<Exchange<'_, 'a, T, D>> {
        self.array.begin_exchange()?;
        Ok(Exchange {
            view: self,
            finished: false,
        })
    }

    /// The reverse of an exchange: every ghost cell's value is combined into the element that it
    /// stands for, `element = element op ghost`, rank by rank, the same way each time. Ghost cells
    /// keep their values; those with an open or fixed boundary go nowhere.
    ///
    /// Collective: all ranks must call it.
    ///
    /// # Errors
    /// As [`LocalView::exchange`].
    #[track_caller]
    pub fn accumulate_halo<O: Operator<T>>(&mut self, op: O) -> Result<()> {
        self.array.accumulate(op)
    }
}

/// An exchange of ghost cells that is under way: made by [`LocalView::exchange_begin`].
/// Dereferences to the view.
///
/// Finished when dropped, too, but then errors go unseen.
#[must_use = "finish() fills the ghost cells"]
pub struct Exchange<'v, 'a, T: Element, const D: usize> {
    view: &'v mut LocalView<'a, T, D>,
    finished: bool,
}

impl<T: Element, const D: usize> Exchange<'_, '_, T, D> {
    /// Waits for the neighbours and fills the ghost cells. Collective.
    ///
    /// # Errors
    /// As [`Team::barrier`](crate::Team::barrier).
    #[track_caller]
    pub fn finish(mut self) -> Result<()> {
        self.finished = true;
        self.view.array.finish_exchange()
    }
}

impl<'a, T: Element, const D: usize> Deref for Exchange<'_, 'a, T, D> {
    type Target = LocalView<'a, T, D>;

    fn deref(&self) -> &Self::Target {
        self.view
    }
}

impl<T: Element, const D: usize> DerefMut for Exchange<'_, '_, T, D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.view
    }
}

impl<T: Element, const D: usize> Drop for Exchange<'_, '_, T, D> {
    fn drop(&mut self) {
        if !self.finished && !std::thread::panicking() {
            // Ghost cells then stay old, and the next exchange says that this one is under way.
            let _ = self.view.array.finish_exchange();
        }
    }
}

impl<T: Element, const D: usize> fmt::Debug for Exchange<'_, '_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exchange").field(&self.view).finish()
    }
}
