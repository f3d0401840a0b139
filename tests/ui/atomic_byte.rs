//! A byte is not widened to a word with neighbours in it.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<u8>::new(world, 10)?;
        array.fetch_add(3, 1)?;
        Ok(())
    })
}
