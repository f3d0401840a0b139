//! What the leaders of nodes do in large collectives: trees of messages, O(log nodes) deep, along
//! which segments follow each other.

use crate::error::Result;
use crate::world::{Core, Request};

/// Bytes of a segment: long enough that its time is not that of its message, short enough that
/// several are under way.
const SEGMENT: usize = 64 << 10;

/// Combines the bytes of elements: `a = a op b`.
type Combine<'a> = &'a dyn Fn(&mut [u8], &[u8]) -> Result<()>;

/// What a leader has sent and not waited for.
struct Sends<'a>(Vec<Request<'a, ()>>);

impl<'a> Sends<'a> {
    fn send(&mut self, core: &'a Core, to: usize, part: u32, bytes: &[u8]) -> Result<()> {
        self.0.push(core.send_part(to, part, bytes.to_vec())?);
        Ok(())
    }

    fn wait(self) -> Result<()> {
        self.0.into_iter().try_for_each(Request::wait)
    }
}

impl Core {
    /// `data` of the leader of node `root`, on all leaders. All have the same length.
    pub(super) fn leaders_broadcast(&self, part: u32, root: usize, data: &mut [u8]) -> Result<()> {
        let tree = self.nodes.tree(root);
        let mut sends = Sends(Vec::new());
        for segment in data.chunks_mut(SEGMENT) {
            if let Some(parent) = tree.parent {
                segment.copy_from_slice(&self.receive_segment(
                    self.nodes.leader_of(parent),
                    part,
                    segment.len(),
                )?);
            }
            for &child in &tree.children {
                sends.send(self, self.nodes.leader_of(child), part, segment)?;
            }
        }
        sends.wait()
    }

    /// All leaders' `data` combined, in the order of nodes, on all of them.
    /// Segments are whole multiples of `unit` bytes.
    pub(super) fn leaders_all_reduce(
        &self,
        part: u32,
        data: &mut [u8],
        unit: usize,
        op: Combine<'_>,
    ) -> Result<()> {
        let tree = self.nodes.tree(0);
        let mut sends = Sends(Vec::new());
        let segment = (SEGMENT / unit).max(1) * unit;
        for segment in data.chunks_mut(segment) {
            // A child's nodes come after mine and before the next child's.
            for &child in &tree.children {
                op(
                    segment,
                    &self.receive_segment(self.nodes.leader_of(child), part, segment.len())?,
                )?;
            }
            match tree.parent {
                Some(parent) => sends.send(self, self.nodes.leader_of(parent), part, segment)?,
                None => {
                    for &child in &tree.children {
                        sends.send(self, self.nodes.leader_of(child), part, segment)?;
                    }
                }
            }
        }
        if let Some(parent) = tree.parent {
            for segment in data.chunks_mut(segment) {
                segment.copy_from_slice(&self.receive_segment(
                    self.nodes.leader_of(parent),
                    part,
                    segment.len(),
                )?);
                for &child in &tree.children {
                    sends.send(self, self.nodes.leader_of(child), part, segment)?;
                }
            }
        }
        sends.wait()
    }

    /// The `data` of all nodes before this one combined in their order; None on the first.
    pub(super) fn leaders_exscan(
        &self,
        part: u32,
        data: &[u8],
        op: Combine<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let (node, nodes) = (self.nodes.my_node(), self.nodes.count());
        let mut sends = Sends(Vec::new());
        // Of `step` nodes up to this one, and of those without it.
        let mut last = data.to_vec();
        let mut before: Option<Vec<u8>> = None;
        let mut step = 1;
        while step < nodes {
            if node + step < nodes {
                sends.send(self, self.nodes.leader_of(node + step), part, &last)?;
            }
            if node >= step {
                let from = self.nodes.leader_of(node - step);
                let earlier = self.receive_segment(from, part, data.len())?;
                let mut all = earlier.clone();
                op(&mut all, &last)?;
                last = all;
                before = Some(match before {
                    None => earlier,
                    Some(later) => {
                        let mut both = earlier;
                        op(&mut both, &later)?;
                        both
                    }
                });
            }
            step <<= 1;
        }
        sends.wait()?;
        Ok(before)
    }

    /// What all leaders have, one after another by node; `lens` says how much each has.
    pub(super) fn leaders_all_gather(
        &self,
        part: u32,
        mine: Vec<u8>,
        lens: &[usize],
    ) -> Result<Vec<u8>> {
        let (node, nodes) = (self.nodes.my_node(), self.nodes.count());
        let len_of = |from: usize, count: usize| -> usize {
            (from..from + count).map(|node| lens[node % nodes]).sum()
        };
        // Of the nodes from this one on, in a circle: twice as many after each step.
        let mut have = mine;
        let mut step = 1;
        while step < nodes {
            let count = step.min(nodes - step);
            let to = self.nodes.leader_of((node + nodes - step) % nodes);
            let from = self.nodes.leader_of((node + step) % nodes);
            let mut sends = Sends(Vec::new());
            let len = len_of(node, count);
            sends.send(self, to, part, &have[..len])?;
            let more = self.receive_segment(from, part, len_of(node + step, count))?;
            have.extend_from_slice(&more);
            sends.wait()?;
            step <<= 1;
        }
        let mine_on = len_of(node, nodes - node);
        have.rotate_left(mine_on);
        Ok(have)
    }

    /// A part of exactly `len` bytes.
    fn receive_segment(&self, from: usize, part: u32, len: usize) -> Result<Vec<u8>> {
        let bytes = self.receive_part(from, part)?;
        super::expect_len(from, bytes.len(), len)?;
        Ok(bytes)
    }
}
