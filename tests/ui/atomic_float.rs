//! UCX adds integers of 4 and 8 bytes.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<f64>::new(world, 10)?;
        array.fetch_add(3, 1.0)?;
        Ok(())
    })
}
