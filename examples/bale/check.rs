//! Is it a permutation?

use pgas::{GlobalArray, Op, World};

/// How many of `0..len` are missing in `permutation`. Collective.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an array's indices are usize"
)]
pub fn missing(world: &World, permutation: &mut GlobalArray<u64>) -> pgas::Result<u64> {
    let len = permutation.len();
    let mut counts = GlobalArray::<u32>::new(world, len)?;
    let view = permutation.read()?;
    counts.update(Op::Sum, |counts| {
        let inside = view.iter().map(|&value| value as usize);
        for value in inside.filter(|&value| value < len) {
            counts.push(value, 1)?;
        }
        Ok(())
    })?;
    view.close()?;
    let bins = counts.histogram(1, |&count| (count == 0).then_some(0))?;
    counts.close()?;
    Ok(bins[0])
}
