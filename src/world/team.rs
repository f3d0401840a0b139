//! `Team`: some of the ranks, numbered anew.

use super::ask::Unsettled;
use super::engine::{self, Engine};
use super::graves::{Graves, News};
use super::messages::Mailbox;
use super::node::{self, Block};
use super::numbers::{self, TEAMS};
use super::peers::Nodes;
use super::pool::Pool;
use super::turn::Turn;
use super::{Call, Checks, Core, Signature};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{MemoryHandle, SerializedRemoteKey};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock, PoisonError};

/// Ranks that do things together: all of a [`World`](crate::World), which is a team, or some of
/// them, numbered from 0.
///
/// Everything that is collective is so for the ranks of a team: arrays, modes and collectives of a
/// team are its ranks' alone, who need not wait for others. A rank may be in any number of teams.
/// Teams are made by dividing a team, which is collective for all its ranks; dropping one is not.
///
/// As with MPI's communicators, ranks that are in two teams must call the collectives of both in
/// the same order, or they wait for each other until the time limit. That holds for dividing teams
/// from several threads, too: a rank divides one at a time.
///
/// # How many teams
/// A rank may be in 32,767 teams at a time, the world not counted. Teams that its ranks have dropped
/// count until the ranks have told each other so, which they do when the team it was made of is divided
/// again or gets a new array; and for ever if a message that was sent in the team has not been received,
/// since that must not reach another team.
///
/// # Memory
/// What a team had in memory is unmapped when all its ranks have dropped it, and its arrays, and
/// the team that it was made of is divided again or gets a new array.
pub struct Team {
    pub(super) core: Arc<Core>,
}

/// What a rank says when a team is divided.
#[derive(Serialize, Deserialize)]
struct Wish {
    color: Option<u64>,
    key: i64,
    next_team: u32,
    next_array: u64,
    /// Teams and arrays it has dropped.
    news: News,
}

impl Team {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// The team that something of its ranks holds on to.
    pub(crate) fn of_core(core: &Arc<Core>) -> Self {
        Self::new(core.clone())
    }

    /// This rank: from 0 to [`size`](Team::size)` - 1`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.core.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.core.size
    }

    /// The ranks that share this rank's memory, itself included, ascending.
    #[must_use]
    pub fn node_ranks(&self) -> &[usize] {
        self.core.nodes.mine()
    }

    /// The number in the world of `rank` of this team. No communication.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn world_rank(&self, rank: usize) -> usize {
        assert!(rank < self.size(), "no rank {rank}");
        self.core.peers.world_rank(rank)
    }

    /// The rank here of the rank with this number in the world; None if it is not in the team. No
    /// communication.
    #[must_use]
    pub fn rank_of(&self, world_rank: usize) -> Option<usize> {
        self.core.peers.rank_of(world_rank)
    }

    /// What the job looks for beside doing what it is told. No communication.
    #[must_use]
    pub fn checks(&self) -> Checks {
        match self.core.races() {
            Some(_) => Checks::Races,
            None => Checks::Collectives,
        }
    }

    /// Waits until everything this rank has written to arrays, of any team, is in its place.
    /// One-sided.
    ///
    /// # Errors
    /// [`ErrorKind::PeerFailed`], [`ErrorKind::Timeout`] or [`ErrorKind::Ucx`].
    pub fn flush(&self) -> Result<()> {
        self.core.flush()
    }

    /// Divides the team: ranks that give the same `color` are a new team, in which they are
    /// numbered by their `key`, and by their rank here where keys are equal.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World) -> pgas::Result<()> {
    /// use pgas::{GlobalArray, Op};
    /// let half = world.split(world.rank() % 2, 0)?;
    /// let ranks = half.all_reduce(1, Op::Sum)?; // of this half alone
    /// let array = GlobalArray::<f64>::new(&half, 1000)?;
    /// # let _ = (ranks, array); Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] on all ranks if one has too little room for a team's meeting place;
    /// [`ErrorKind::InvalidArgument`] on all ranks if no [number](Team#how-many-teams) is free; else
    /// as [`Team::barrier`].
    #[track_caller]
    #[doc(alias = "MPI_Comm_split")]
    pub fn split(&self, color: usize, key: i64) -> Result<Self> {
        let team = self.divide(Some(color as u64), key)?;
        team.ok_or_else(|| Error::new(ErrorKind::Ucx, "no team"))
    }

    /// A team of the ranks that say `true`, in their order; None on the others.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::split`].
    #[track_caller]
    pub fn subset(&self, member: bool) -> Result<Option<Self>> {
        self.divide(member.then_some(0), 0)
    }

    /// A team of the ranks that share this rank's memory.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::split`].
    #[track_caller]
    #[doc(alias = "MPI_Comm_split_type")]
    pub fn split_node(&self) -> Result<Self> {
        self.split(self.core.nodes.my_node(), 0)
    }

    /// The ranks as a grid of this shape, in row-major order; `periodic` says which dimensions are
    /// rings. No communication.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] unless the grid has as many places as there are ranks.
    #[doc(alias = "MPI_Cart_create")]
    pub fn grid<const D: usize>(
        &self,
        shape: [usize; D],
        periodic: [bool; D],
    ) -> Result<Grid<'_, D>> {
        let places = shape.iter().try_fold(1_usize, |all, &n| all.checked_mul(n));
        if places != Some(self.size()) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a grid of {shape:?} of {} ranks", self.size()),
            ));
        }
        Ok(Grid {
            team: self,
            shape,
            periodic,
        })
    }

    #[track_caller]
    fn divide(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        let core = &self.core;
        let signature = |step| Signature::new(Call::Split).detail(step);
        let dividing = core.job.dividing.lock();
        let _one_at_a_time = dividing.unwrap_or_else(PoisonError::into_inner);
        let _turn = core.turn()?;
        let wish = Wish {
            color,
            key,
            next_team: core.job.numbers.next(),
            next_array: core.job.numbers.next_array(),
            news: core.graves.news(),
        };
        let wishes: Vec<Wish> = core
            .gather(&signature(0), &wish)
            .inspect_err(|_| core.graves.not_told(wish.news))?;
        for wish in &wishes {
            core.graves.hear(&wish.news);
        }
        let next = wishes.iter().map(|wish| wish.next_team).max().unwrap_or(1);
        let (team, first_array) = if next < TEAMS {
            core.job.numbers.given(next);
            (next, 0)
        } else {
            // Arrays of this number's earlier teams had lower ones.
            let first_array = wishes.iter().map(|wish| wish.next_array).max();
            (core.free_number(&signature(3))?, first_array.unwrap_or(0))
        };

        // Ranks here, in their new order.
        let mut members: Vec<usize> = match color {
            Some(_) => (0..core.size)
                .filter(|&rank| wishes[rank].color == color)
                .collect(),
            None => Vec::new(),
        };
        members.sort_by_key(|&rank| wishes[rank].key);
        let place = members.iter().position(|&rank| rank == core.rank);
        let nodes = place.map(|rank| {
            let node_of: Vec<_> = members
                .iter()
                .map(|&rank| core.nodes.node_of(rank))
                .collect();
            (rank, Nodes::new(&node_of, rank))
        });

        // A meeting block for each node of each new team, from its first rank there.
        let mut memory = Ok(None);
        if let Some((_, nodes)) = &nodes
            && nodes.mine().len() > 1
            && nodes.my_place() == 0
        {
            let words = node::words(nodes.mine().len());
            let bytes = 8 * words as u64;
            memory = core
                .check_room(bytes, bytes, bytes)
                .map_err(|reason| Error::new(ErrorKind::NoRoom, reason))
                .and_then(|()| MemoryHandle::allocate::<u64>(&core.context, words))
                .map(Some);
        }
        let key = memory.as_ref().map_err(ToString::to_string);
        let key = key.and_then(|memory| {
            let packed = memory.as_ref().map(MemoryHandle::pack).transpose();
            packed.map_err(|error| error.to_string())
        });
        let keys: Vec<Result<Option<SerializedRemoteKey>, String>> =
            core.gather(&signature(1), &key)?;
        let block = match (&nodes, memory) {
            (Some((_, nodes)), Ok(memory)) if nodes.mine().len() > 1 => {
                let leader = members[nodes.mine()[0]];
                self.meet(nodes, memory, leader, &keys)
            }
            _ => Ok(None),
        };
        // One that failed is a failure of all.
        let outcome = block.as_ref().map(drop).map_err(ToString::to_string);
        let outcomes: Vec<Result<(), String>> = core.gather(&signature(2), &outcome)?;
        let failed = keys.iter().map(|key| key.as_ref().err()).enumerate();
        let failed = failed.chain(
            outcomes
                .iter()
                .map(|outcome| outcome.as_ref().err())
                .enumerate(),
        );
        for (rank, reason) in failed {
            if let Some(reason) = reason {
                if let Some(memory) = block.ok().flatten().and_then(|block| block.memory()) {
                    // Refused by all ranks alike: nobody will use its key.
                    super::unmap(memory);
                }
                return Err(Error::new(
                    ErrorKind::NoRoom,
                    format!("split into teams: rank {rank}: {reason}"),
                )
                .with_peer(rank));
            }
        }
        let (Some((rank, nodes)), block) = (nodes, block?) else {
            return Ok(None);
        };
        core.job.numbers.take(team);
        let number = (team, first_array);
        Ok(Some(Self::new(Arc::new(Core::team_of(
            core, number, rank, &members, nodes, block,
        )))))
    }

    /// The block of this rank's node in a new team.
    fn meet(
        &self,
        nodes: &Nodes,
        memory: Option<MemoryHandle>,
        leader: usize,
        keys: &[Result<Option<SerializedRemoteKey>, String>],
    ) -> Result<Option<Block>> {
        let members = nodes.mine().len();
        let block = match memory {
            Some(memory) => Block::of_leader(memory, members),
            None => {
                let Ok(Some(key)) = &keys[leader] else {
                    return Ok(None); // Its failure is all ranks'.
                };
                let key = self.core.peers.for_memory(leader)?.unpack(key)?;
                Block::of_member(key, members, nodes.my_place())
            }
        };
        let not_mapped = || Error::new(ErrorKind::NoRoom, "the meeting place cannot be mapped");
        block.ok_or_else(not_mapped).map(Some)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Core {
    /// A team's number that no rank uses. The caller has the [`turn`](Core::turn).
    fn free_number(&self, signature: &Signature) -> Result<u32> {
        let mine = self.job.numbers.used();
        let combine = engine::Combine::Reduce(&numbers::add, engine::By::All);
        let found = self
            .engine
            .exchange(signature, &mine, &combine, numbers::lowest_free)?;
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("split into teams: all {} numbers are in use", TEAMS - 1),
            )
        })
    }

    /// Some of the ranks as a team of their own, with this number and this one for its first array.
    fn team_of(
        self: &Arc<Self>,
        (team, first_array): (u32, u64),
        rank: usize,
        members: &[usize],
        nodes: Nodes,
        block: Option<Block>,
    ) -> Self {
        let nodes = Arc::new(nodes);
        let pool = Arc::new(Pool::default());
        let peers = self.peers.of_team(members);
        let here = |&rank: &usize| self.neighbours.contains(&members[rank]);
        Self {
            rank,
            size: members.len(),
            team,
            parent: Some(self.clone()),
            job: self.job.clone(),
            next_array: AtomicU64::new(first_array),
            next_part: AtomicU32::new(0),
            unsettled: Unsettled::default(),
            to_self: Mailbox::default(),
            turn: Turn::default(),
            races: self.races.clone(),
            graves: Graves::new(self.served.clone(), pool.clone(), self.job.numbers.clone()),
            pool,
            stage: OnceLock::new(),
            served: self.served.clone(),
            engine: Engine::new(
                peers.clone(),
                nodes.clone(),
                block.map(Arc::new),
                rank,
                team,
                self.races.clone(),
                self.limits.clone(),
            ),
            peers,
            nodes,
            neighbours: (0..members.len()).filter(here).collect(),
            limits: self.limits.clone(),
            worker: self.worker.clone(),
            context: self.context.clone(),
            transports: self.transports.clone(),
        }
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// A team's ranks as a grid: see [`Team::grid`].
#[derive(Clone, Copy, Debug)]
pub struct Grid<'a, const D: usize> {
    team: &'a Team,
    shape: [usize; D],
    periodic: [bool; D],
}

impl<const D: usize> Grid<'_, D> {
    /// Ranks along each dimension.
    #[must_use]
    pub fn shape(&self) -> [usize; D] {
        self.shape
    }

    /// This rank's place.
    #[must_use]
    pub fn coordinates(&self) -> [usize; D] {
        self.coordinates_of(self.team.rank())
    }

    /// A rank's place.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn coordinates_of(&self, rank: usize) -> [usize; D] {
        assert!(rank < self.team.size(), "no rank {rank}");
        let mut rest = rank;
        let mut place = [0; D];
        for d in (0..D).rev() {
            place[d] = rest % self.shape[d];
            rest /= self.shape[d];
        }
        place
    }

    /// The rank at a place; None outside the grid.
    #[must_use]
    pub fn rank_at(&self, place: [usize; D]) -> Option<usize> {
        let mut rank = 0;
        for (place, len) in place.into_iter().zip(self.shape) {
            if place >= len {
                return None;
            }
            rank = rank * len + place;
        }
        Some(rank)
    }

    /// The rank so many steps from this one along dimension `d`; None beyond an edge.
    ///
    /// # Panics
    /// If there is no such dimension.
    #[must_use]
    #[doc(alias = "MPI_Cart_shift")]
    pub fn neighbour(&self, d: usize, steps: isize) -> Option<usize> {
        let (mut place, len) = (self.coordinates(), self.shape[d]);
        let moved = place[d].checked_add_signed(steps);
        place[d] = match moved {
            Some(moved) if moved < len => moved,
            _ if !self.periodic[d] => return None,
            _ => {
                let (at, steps, len) = (place[d] as i128, steps as i128, len as i128);
                usize::try_from((at + steps).rem_euclid(len)).ok()?
            }
        };
        self.rank_at(place)
    }

    /// A team of the ranks that differ from this one in dimension `d` only.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::split`].
    ///
    /// # Panics
    /// If there is no such dimension.
    #[track_caller]
    #[doc(alias = "MPI_Cart_sub")]
    pub fn line(&self, d: usize) -> Result<Team> {
        let mut place = self.coordinates();
        place[d] = 0;
        // The first rank of the line names it.
        let color = self.rank_at(place).unwrap_or(0);
        self.team.split(color, 0)
    }
}
