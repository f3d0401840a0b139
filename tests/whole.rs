//! Algorithms on whole arrays that are of different teams, that have to be bounded in memory, or
//! whose way is looked at.

#![expect(clippy::cast_possible_wrap, reason = "test numbers are small")]

mod model;

use model::everywhere;
use pgas::{Dist, ErrorKind, GlobalArray, Team, World};

/// Two teams of the same ranks, in other orders.
fn turned(world: &World) -> pgas::Result<()> {
    let turned = world.split(0, -(world.rank() as i64))?;
    // Rank 0 goes last.
    let shifted = world.split(0, if world.rank() == 0 { 99 } else { 0 })?;
    let teams: [&Team; 3] = [world, &turned, &shifted];
    for len in [0, 1, 3, 4, 1000] {
        let all: Vec<usize> = (0..len).collect();
        for (first, second) in [(0, 1), (1, 0), (1, 2), (0, 2), (2, 2)] {
            let (first, second) = (teams[first], teams[second]);
            for dist in [Dist::Block, Dist::Cyclic] {
                let a = |value: &dyn Fn(usize) -> f64| {
                    GlobalArray::<f64>::builder(first, len)
                        .dist([dist.clone()])
                        .from_fn(value)
                };
                let mut b = GlobalArray::<f64>::builder(second, len)
                    .dist([dist.clone()])
                    .from_fn(|k: usize| k as f64)?;
                let mut mask = GlobalArray::<bool>::builder(second, len)
                    .dist([dist.clone()])
                    .from_fn(|k: usize| k % 3 == 1)?;
                let mut copied = a(&|_| -1.0)?;
                copied.copy_from(&mut b)?;
                let mut zipped = a(&|k| 2.0 * k as f64)?;
                zipped.zip_apply(&mut b, |x, y| 10.0 * x + y)?;
                let mut added = a(&|k| k as f64)?;
                added.axpy(3.0, &mut b)?;
                let right = (0..len).map(|k| 4.0 * (k * k) as f64).sum::<f64>();
                assert_eq!(added.dot(&mut b)?, right);
                let selected = added.select(&mut mask)?;
                world.barrier()?;
                for k in 0..len {
                    assert_eq!(copied.get(k)?, k as f64, "{len} {dist:?}");
                    assert_eq!(zipped.get(k)?, 21.0 * k as f64, "{len} {dist:?}");
                }
                let right = all.iter().filter(|&k| k % 3 == 1).map(|&k| 4.0 * k as f64);
                assert!(selected.get_range(0..selected.len())?.into_iter().eq(right));
                world.barrier()?;
            }
        }
        let mut a = GlobalArray::<f64, 2>::from_fn(world, [len, 3], |[i, j]| (i + 5 * j) as f64)?;
        let mut b = GlobalArray::<f64, 2>::from_fn(&turned, [3, 2], |[i, j]| (2 * i + j) as f64)?;
        let product = a.matmul(&mut b)?;
        world.barrier()?;
        for i in 0..len {
            for j in 0..2 {
                let right: f64 = (0..3).map(|k| ((i + 5 * k) * (2 * k + j)) as f64).sum();
                assert_eq!(product.get([i, j])?, right);
            }
        }
        world.barrier()?;
    }
    Ok(())
}

#[test]
fn teams_in_other_orders() {
    everywhere(2, turned);
    everywhere(4, turned);
}

/// Teams of as many ranks, but of others: whoever is in both is told, and waits for nobody.
#[test]
fn teams_of_other_ranks() {
    everywhere(3, |world| {
        let first = world.subset(world.rank() < 2)?;
        let second = world.subset(world.rank() > 0)?;
        let make = |team: &Option<Team>| {
            team.as_ref()
                .map(|team| GlobalArray::<f64>::from_fn(team, 10, |k| k as f64))
                .transpose()
        };
        let (mut a, mut b) = (make(&first)?, make(&second)?);
        let mut whole = GlobalArray::<f64>::from_fn(world, 10, |k| 100.0 + k as f64)?;
        let refused = |error: Option<pgas::Error>| {
            let error = error.expect("a refusal");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains("ranks"), "{error}");
        };
        if let (Some(a), Some(b)) = (&mut a, &mut b) {
            refused(a.copy_from(b).err());
            refused(a.zip_apply(b, |x, _| x).err());
            refused(a.axpy(1.0, b).err());
            refused(a.dot(b).err());
        }
        // And of fewer ranks.
        if let Some(a) = &mut a {
            refused(a.copy_from(&mut whole).err());
            refused(whole.copy_from(a).err());
        }
        world.barrier()?;
        // All of them are as they were, and of use.
        if let Some(a) = &mut a {
            assert_eq!(a.sum()?, 45.0);
        }
        assert_eq!(whole.sum()?, 1045.0);
        if let Some(b) = &mut b {
            assert_eq!(b.sum()?, 45.0);
        }
        world.barrier()
    });
}
