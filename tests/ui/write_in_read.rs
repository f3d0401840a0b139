//! What is shared for reading is not written.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<u64>::new(world, 10)?;
        let mut view = array.read()?;
        view[0] = 1;
        Ok(())
    })
}
