//! Nothing but atomic operations while an atomics view lives.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<u64>::new(world, 10)?;
        let view = array.atomics()?;
        array.put(0, 1)?;
        view.fetch_add(0, 1)?;
        Ok(())
    })
}
