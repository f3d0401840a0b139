//! Who does not come to a meeting, for people: in errors, and after a while on standard error.

use super::Engine;
use crate::error::{Error, ErrorKind};
use crate::world::control::report;
use crate::world::node::Block;
use crate::world::signature::Signature;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

impl Engine {
    /// Keeps what a node's leader has called, and where.
    pub(super) fn note(&self, node: usize, signature: &Signature, place: &str) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.insert(node, format!("{signature}{place}"));
    }

    /// That leader, with what it was last seen in.
    pub(super) fn leader_text(&self, node: usize) -> String {
        let leader = self.nodes.leader_of(node);
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match heard.get(&node) {
            Some(last) => format!("rank {leader} (last seen in {last})"),
            None => format!("rank {leader}"),
        }
    }

    /// Says that members of the node do not come, if this rank is the first of those that have.
    pub(super) fn tell_absent(
        &self,
        waited: Duration,
        signature: &Signature,
        block: &Block,
        sequence: u32,
    ) {
        let absent: Vec<usize> = block.absent(sequence).collect();
        let first = (0..).find(|member| !absent.contains(member));
        if first == Some(self.nodes.my_place()) && !absent.is_empty() {
            let ranks = self.absent_text(block, sequence, |rank| self.peers.world_rank(rank));
            self.tell(waited, signature, &format!("rank {ranks}"));
        }
    }

    /// Members that have not come, by the number that `number` gives them, with what each was last
    /// seen in.
    pub(super) fn absent_text(
        &self,
        block: &Block,
        sequence: u32,
        number: impl Fn(usize) -> usize,
    ) -> String {
        let ranks: Vec<_> = block
            .absent(sequence)
            .map(|member| self.member_text(block, sequence, member, &number))
            .collect();
        ranks.join(", ")
    }

    /// One that has not come.
    pub(super) fn member_text(
        &self,
        block: &Block,
        sequence: u32,
        member: usize,
        number: impl Fn(usize) -> usize,
    ) -> String {
        let rank = number(self.nodes.mine()[member]);
        match block.last_seen(member, sequence) {
            Some((last, place)) => format!("{rank} (last seen in {last}{place})"),
            None => rank.to_string(),
        }
    }

    /// Says once on standard error that this process waits for somebody.
    pub(in crate::world) fn tell(&self, waited: Duration, signature: &Signature, whom: &str) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if TOLD.swap(true, Ordering::Relaxed) {
            return;
        }
        let team = match self.team {
            0 => String::new(),
            team => format!(" of team {team}"),
        };
        let text = format!(
            "has waited for {waited:?} in {signature}{}{team}, for {whom} (PGAS_NOTICE sets this time)",
            signature.place()
        );
        report(self.peers.world_rank(self.rank), &text);
    }

    /// A time-out inside a node, with the names of those who did not come.
    pub(super) fn explain(
        &self,
        error: Error,
        block: &Block,
        sequence: u32,
        signature: &Signature,
    ) -> Error {
        if error.kind() != ErrorKind::Timeout {
            return error.context(signature);
        }
        let ranks = self.absent_text(block, sequence, |rank| rank);
        let who = match ranks.as_str() {
            "" => "other nodes".to_string(),
            ranks => format!("rank {ranks}"),
        };
        self.late(signature, &who)
    }

    /// Somebody did not come in time.
    pub(super) fn late(&self, signature: &Signature, who: &str) -> Error {
        let limit = self.limits.timeout().unwrap_or_default();
        Error::new(
            ErrorKind::Timeout,
            format!("{signature}: {who} did not come within {limit:?}"),
        )
    }
}
