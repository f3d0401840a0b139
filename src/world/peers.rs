//! The other ranks: where they are, and the endpoints to them, made at first use.

use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{Endpoint, Worker, WorkerAddress};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Which ranks share memory with which: found out once, at the start.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// For each node its ranks, ascending; nodes by their lowest rank, which leads them.
    members: Vec<Vec<usize>>,
    my_node: usize,
    my_place: usize,
}

impl Nodes {
    /// `node_of[rank]` is anything that is equal for ranks of one node.
    pub(super) fn new<K: Eq + Hash>(node_of: &[K], rank: usize) -> Self {
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut index_of = HashMap::new();
        for (rank, node) in node_of.iter().enumerate() {
            let index = *index_of.entry(node).or_insert_with(|| {
                members.push(Vec::new());
                members.len() - 1
            });
            members[index].push(rank);
        }
        let my_node = index_of[&node_of[rank]];
        let my_place = members[my_node].partition_point(|&member| member < rank);
        Self {
            members,
            my_node,
            my_place,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// The ranks of node `node`, ascending.
    pub(crate) fn members_of(&self, node: usize) -> &[usize] {
        &self.members[node]
    }

    /// The ranks of this rank's node, ascending; the first leads.
    pub(crate) fn mine(&self) -> &[usize] {
        &self.members[self.my_node]
    }

    pub(crate) fn my_node(&self) -> usize {
        self.my_node
    }

    /// This rank's place among its node's ranks.
    pub(crate) fn my_place(&self) -> usize {
        self.my_place
    }

    /// The place of `rank` among this node's ranks; None if it is on another node.
    pub(crate) fn place_of(&self, rank: usize) -> Option<usize> {
        self.mine().binary_search(&rank).ok()
    }

    /// The node of `rank`.
    pub(crate) fn node_of(&self, rank: usize) -> usize {
        let has = |members: &Vec<usize>| members.binary_search(&rank).is_ok();
        self.members.iter().position(has).unwrap_or(0)
    }

    /// Whether nodes have ranks that follow each other, so that node by node is rank by rank.
    pub(crate) fn are_in_order(&self) -> bool {
        self.members
            .iter()
            .flatten()
            .enumerate()
            .all(|(k, &rank)| k == rank)
    }

    /// This node's place in the tree of all nodes whose root is node `root`.
    pub(super) fn tree(&self, root: usize) -> Tree {
        let nodes = self.count();
        let number = (self.my_node + nodes - root) % nodes;
        let node = |number: usize| (number + root) % nodes;
        let mut children = Vec::new();
        let mut step = 1;
        while number & step == 0 && number + step < nodes {
            children.push(node(number + step));
            step <<= 1;
        }
        Tree {
            // Without its lowest set bit.
            parent: (number > 0).then(|| node(number & (number - 1))),
            children,
        }
    }

    pub(crate) fn leader_of(&self, node: usize) -> usize {
        self.members[node][0]
    }
}

/// A node's place in a binomial tree: the root has number 0, and the children of number `n` are
/// `n + 1`, `n + 2`, `n + 4`, … as long as that bit of `n` is 0. A child's nodes follow its
/// parent's and come before the next child's.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) parent: Option<usize>,
    pub(super) children: Vec<usize>,
}

/// The other ranks of a team, as it numbers them.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    all: Arc<Endpoints>,
    /// By rank in the team: the rank in the world. None for the world itself.
    members: Option<Arc<[usize]>>,
}

/// Addresses of all ranks of the job, kept packed, and the endpoints made so far.
///
/// There is never more than one endpoint from a worker to another: UCX 1.13 sends large messages
/// to the first one even if it was closed, and they are lost.
#[derive(Debug)]
struct Endpoints {
    worker: Worker,
    /// Where a rank receives messages: its main worker, progressed when it communicates.
    messages: Vec<Lazy>,
    /// Where its memory is served: a worker that a thread of its own progresses; empty if no
    /// rank needs one, since all memory is mapped.
    service: OnceLock<Vec<Lazy>>,
    making: Mutex<()>,
}

#[derive(Debug)]
struct Lazy {
    address: Vec<u8>,
    endpoint: OnceLock<Endpoint>,
}

impl Lazy {
    fn list(addresses: Vec<Vec<u8>>) -> Vec<Self> {
        addresses
            .into_iter()
            .map(|address| Self {
                address,
                endpoint: OnceLock::new(),
            })
            .collect()
    }
}

impl Peers {
    pub(super) fn new(worker: Worker, messages: Vec<Vec<u8>>) -> Self {
        Self {
            all: Arc::new(Endpoints {
                worker,
                messages: Lazy::list(messages),
                service: OnceLock::new(),
                making: Mutex::default(),
            }),
            members: None,
        }
    }

    /// Some of them, by their ranks here.
    pub(super) fn of_team(&self, ranks: &[usize]) -> Self {
        Self {
            all: self.all.clone(),
            members: Some(ranks.iter().map(|&rank| self.world_rank(rank)).collect()),
        }
    }

    /// The numbers of all in the world; None for the world itself.
    pub(crate) fn members(&self) -> Option<Arc<[usize]>> {
        self.members.clone()
    }

    /// A rank's number in the world.
    pub(crate) fn world_rank(&self, rank: usize) -> usize {
        self.members.as_ref().map_or(rank, |members| members[rank])
    }

    /// The rank that has this number in the world, if it is one of these.
    pub(crate) fn rank_of(&self, world_rank: usize) -> Option<usize> {
        match &self.members {
            Some(members) => members.iter().position(|&member| member == world_rank),
            None => (world_rank < self.all.messages.len()).then_some(world_rank),
        }
    }

    /// From now on memory is reached at these addresses.
    pub(super) fn serve_at(&self, addresses: Vec<Vec<u8>>) {
        self.all.service.get_or_init(|| Lazy::list(addresses));
    }

    pub(crate) fn worker(&self) -> &Worker {
        &self.all.worker
    }

    /// The endpoint for messages to `rank`.
    pub(crate) fn for_messages(&self, rank: usize) -> Result<&Endpoint> {
        self.all
            .endpoint(&self.all.messages[self.world_rank(rank)], rank)
    }

    /// The endpoint for access to memory of `rank`.
    pub(crate) fn for_memory(&self, rank: usize) -> Result<&Endpoint> {
        let places = self.all.service.get().unwrap_or(&self.all.messages);
        self.all.endpoint(&places[self.world_rank(rank)], rank)
    }
}

impl Endpoints {
    fn endpoint<'a>(&self, lazy: &'a Lazy, rank: usize) -> Result<&'a Endpoint> {
        if let Some(endpoint) = lazy.endpoint.get() {
            return Ok(endpoint);
        }
        let _one_maker = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = lazy.endpoint.get() {
            return Ok(endpoint);
        }
        let made = WorkerAddress::from_bytes(&lazy.address)
            .and_then(|address| self.worker.connect(&address))
            .map_err(|error| {
                error
                    .context(format!("connecting to rank {rank}"))
                    .with_peer(rank)
            })?;
        lazy.endpoint.get_or_init(|| made);
        lazy.endpoint
            .get()
            .ok_or_else(|| Error::new(ErrorKind::Ucx, "endpoint vanished"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_ordered_by_their_lowest_rank() {
        let nodes = Nodes::new(&[7, 3, 7, 3, 9], 3);
        assert_eq!(nodes.count(), 3);
        assert_eq!(nodes.members_of(0), [0, 2]);
        assert_eq!(nodes.mine(), [1, 3]);
        assert_eq!((nodes.my_node(), nodes.my_place()), (1, 1));
        assert_eq!(nodes.leader_of(2), 4);
    }
}
