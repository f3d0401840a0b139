//! Random permutations by throwing darts.

use crate::random::below;
use pgas::{GlobalArray, Op, World};

/// No dart.
const EMPTY: u64 = u64::MAX;

/// The lower bits of what is in a slot: which dart. Those above: in which round it was thrown.
const DART_BITS: u32 = 40;
const DART: u64 = (1 << DART_BITS) - 1;

/// A random permutation of `0..len`, in blocks, and the rounds it took. Collective.
///
/// Every number is a dart. All ranks throw theirs at random slots of a table twice as long; a slot
/// keeps the least number that was thrown at it, where darts of an earlier round are less. Darts that
/// were not kept are thrown again. The darts in the order of their slots are the permutation.
pub fn random(world: &World, len: usize, seed: u64) -> pgas::Result<(GlobalArray<u64>, u64)> {
    let slots_len = 2 * len;
    let mut slots = GlobalArray::<u64>::new(world, slots_len)?;
    slots.fill(EMPTY)?;
    let part = |rank: usize| (len * rank / world.size()) as u64;
    let mut darts: Vec<u64> = (part(world.rank())..part(world.rank() + 1)).collect();
    let mut rounds = 0;
    while world.all_reduce(darts.len() as u64, Op::Sum)? > 0 {
        let tag = rounds << DART_BITS;
        let place = |dart: &u64| below(seed ^ (tag | dart), slots_len);
        let places: Vec<usize> = darts.iter().map(place).collect();
        let thrown: Vec<u64> = darts.iter().map(|dart| tag | dart).collect();
        slots.scatter_with(&places, &thrown, Op::Min)?;
        world.barrier()?; // all have thrown
        let kept = slots.gather(&places)?;
        let missed = thrown.iter().zip(&kept).filter(|(dart, kept)| dart != kept);
        darts = missed.map(|(dart, _)| dart & DART).collect();
        rounds += 1;
    }
    let mut permutation = slots.filter(|&slot| slot != EMPTY)?;
    permutation.map_inplace(|slot| slot & DART)?;
    slots.close()?;
    Ok((permutation, rounds))
}
