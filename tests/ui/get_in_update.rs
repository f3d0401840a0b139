//! An update pushes; it cannot read.

use pgas::{GlobalArray, Op, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<u64>::new(world, 10)?;
        array.update(Op::Sum, |updates| updates.push(0, array.get(1)?))
    })
}
