//! A request needs its array.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<u64>::new(world, 10)?;
        let request = array.get_async(9)?;
        array.close()?;
        println!("{}", request.wait()?);
        Ok(())
    })
}
