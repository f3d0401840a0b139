//! Where the values of ghost cells come from, and so what ranks send each other.
//!
//! It follows from the layout, and each rank finds it out for itself.

use crate::array::Boundary;
use crate::dist::{Layout, Patch, successor};
use crate::element::Element;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a rank gets from others and gives to them in an exchange.
#[derive(Debug)]
pub(in crate::array) struct Halo<const D: usize> {
    /// By rank, into ghost cells.
    pub(super) receives: Vec<Message<D>>,
    /// By rank, out of own cells.
    pub(super) sends: Vec<Message<D>>,
    /// Ghost cells that get a fixed value, that of this dimension.
    pub(super) fixed: Vec<(usize, Patch<D>)>,
    /// The stage of the next exchange.
    pub(super) turn: usize,
    pub(super) under_way: bool,
}

/// Cells that go from one rank to another.
#[derive(Clone, Debug)]
pub(super) struct Message<const D: usize> {
    /// The other rank.
    pub(super) rank: usize,
    /// Place of the message in the first stage of the rank that gets it, counted from the start
    /// of its memory; and the length of a stage there.
    pub(super) at: usize,
    pub(super) stage: usize,
    pub(super) len: usize,
    /// Places in this rank's memory, in the order of the message.
    pub(super) cells: Vec<Patch<D>>,
}

impl<const D: usize> Message<D> {
    /// Place of the message in the stage of this turn.
    pub(super) fn place(&self, turn: usize) -> usize {
        self.at + turn * self.stage
    }
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
pub(in crate::array) struct Geometry<'a, const D: usize> {
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
    pub(in crate::array) fn new<T>(
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
    pub(in crate::array) fn fingerprint<T: Element>(&self, boundary: &[Boundary<T>; D]) -> u64 {
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
    pub(in crate::array) fn stages_len(&self, rank: usize) -> usize {
        2 * self.stage_len(rank)
    }

    fn stage_len(&self, rank: usize) -> usize {
        let received = self.boxes(rank).into_iter().filter(Box::is_received);
        received.map(|cells| cells.len()).sum()
    }

    /// What `rank` does in an exchange.
    pub(in crate::array) fn of_rank(&self, rank: usize) -> Halo<D> {
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
            match successor(choice, lens) {
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
            match successor(choice, lens) {
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
