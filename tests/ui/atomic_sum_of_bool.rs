//! Flags do not add up.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<bool>::new(world, 10)?;
        array.fetch_add(3, true)?;
        Ok(())
    })
}
