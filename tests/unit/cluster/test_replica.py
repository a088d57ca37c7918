"""A replica trains as torch's own does, without importing torch's compiler."""

import subprocess
import sys

PROGRAM = """
import sys, tempfile, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from dragoman.cluster.replica import Replica
dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
gradients = []
for kind in (Replica, DistributedDataParallel):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    replica = kind(model, gradient_as_bucket_view=True)
    with replica.no_sync():
        replica(torch.ones(1, 3)).sum().backward()
    replica(torch.ones(2, 3)).sum().backward()
    gradients.append(model.weight.grad.clone())
    print("torch._dynamo" in sys.modules)
print(torch.equal(*gradients))
again = Replica(torch.nn.Linear(3, 2))  # beside a compiler that is there
print(torch._dynamo is sys.modules["torch._dynamo"])
dist.destroy_process_group()
"""


def test_a_replica_does_not_import_torchs_compiler_and_trains_alike():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "True", "True", "True"], done.stderr
