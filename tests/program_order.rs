//! A rank's own operations on its elements happen in programme order, whichever way each takes:
//! by UCX, which completes a put locally first, or as a request to the owner.

#![expect(clippy::cast_possible_wrap, reason = "test numbers are small")]

mod model;

use model::{Random, Value, everywhere};
use ndarray::Array;
use pgas::{Dist, GlobalArray, World, span};

fn in_order<T: Value>(world: &World, dist: &Dist) -> pgas::Result<()> {
    let (ranks, mine) = (world.size(), 40);
    let len = ranks * mine + 20;
    let array = GlobalArray::<T>::builder(world, len)
        .dist([dist.clone()])
        .from_fn(|_: usize| T::of(0))?;
    // Mostly another rank's elements.
    let first = (world.rank() + 1) % ranks * mine + 15;
    let mut right = vec![T::of(0); mine];
    let mut random = Random(7 + world.rank() as u64);
    for round in 0..600 {
        let (a, b) = (random.below(mine), random.below(mine));
        let range = a.min(b)..a.max(b) + 1;
        let there = first + range.start..first + range.end;
        let step = random.within(1, 3) as isize * if random.one_in(2) { 1 } else { -1 };
        let part = span(there.clone()).step_by(step);
        let mut places: Vec<usize> = range.clone().collect();
        if step < 0 {
            places.reverse();
        }
        let places: Vec<usize> = places.into_iter().step_by(step.unsigned_abs()).collect();
        let list: Vec<usize> = (0..random.below(20)).map(|_| random.below(mine)).collect();
        let there_too: Vec<usize> = list.iter().map(|place| first + place).collect();
        let value = T::of(round);
        match random.below(9) {
            0 => {
                array.put(first + a, value)?;
                right[a] = value;
            }
            1 => {
                array.put_range(there.start, &vec![value; range.len()])?;
                right[range].fill(value);
            }
            2 => {
                array.put_section(part, &Array::from_elem(places.len(), value))?;
                places.iter().for_each(|&place| right[place] = value);
            }
            3 => {
                let values: Vec<T> = (0..list.len()).map(|k| T::of(round + k)).collect();
                array.scatter(&there_too, &values)?;
                list.iter()
                    .zip(values)
                    .for_each(|(&place, value)| right[place] = value);
            }
            4 => assert_eq!(array.get(first + a)?, right[a], "get {round}"),
            5 => assert_eq!(array.get_range(there)?, right[range], "get_range {round}"),
            6 => {
                let wanted: Vec<T> = places.iter().map(|&place| right[place]).collect();
                assert_eq!(
                    array.get_section(part)?.to_vec(),
                    wanted,
                    "get_section {round}"
                );
            }
            7 => {
                let wanted: Vec<T> = list.iter().map(|&place| right[place]).collect();
                assert_eq!(array.gather(&there_too)?, wanted, "gather {round}");
            }
            // What is written when others look.
            _ => {
                array.put(first + a, value)?;
                array.put_section(
                    first + b..=first + b,
                    &Array::from_elem(1, T::of(round + 1)),
                )?;
                right[a] = value;
                right[b] = T::of(round + 1);
                assert_eq!(array.gather(&[first + a])?, [right[a]], "{round}");
            }
        }
    }
    world.barrier()?;
    let all = world.all_gather_slice(&right)?;
    for rank in 0..ranks {
        let first = (rank + 1) % ranks * mine + 15;
        assert_eq!(
            array.get_range(first..first + mine)?,
            all[rank * mine..(rank + 1) * mine]
        );
    }
    world.barrier()
}

fn in_order_everywhere(world: &World) -> pgas::Result<()> {
    in_order::<i64>(world, &Dist::Block)?;
    in_order::<u8>(world, &Dist::Cyclic)?;
    in_order::<[f32; 3]>(world, &Dist::BlockCyclic(5))
}

#[test]
fn operations_on_one_element_happen_in_programme_order() {
    everywhere(3, in_order_everywhere);
}
