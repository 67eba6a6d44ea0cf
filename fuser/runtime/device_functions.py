"""What generated kernels call as `fn`: torch's functions, for a GPU or for Triton's interpreter.

In: tiles, inside a kernel. Out: tiles with exactly eager's values, apart from the `approximate_*`
functions, whose results are to be rounded to a half type. Where Triton was imported with
TRITON_INTERPRET=1 the names come from `interpreter_functions`, which hands the tiles to torch;
otherwise from the `device_*` modules, which compile for every backend that Triton supports. Both
sides export the same names.
"""

from fuser.runtime.interpreter import is_interpreting, repair

if is_interpreting():
    repair()
    from fuser.runtime.interpreter_functions import *  # noqa: F403 - a second list would drift
else:
    from fuser.runtime.device_approximate import *  # noqa: F403
    from fuser.runtime.device_arithmetic import *  # noqa: F403
    from fuser.runtime.device_float8 import *  # noqa: F403
    from fuser.runtime.device_logic import *  # noqa: F403
    from fuser.runtime.device_math import *  # noqa: F403
    from fuser.runtime.device_reductions import *  # noqa: F403

from fuser.runtime.device_halves import *  # noqa: F403 - written once for both
from fuser.runtime.device_online import *  # noqa: F403 - written once for both
from fuser.runtime.device_products import *  # noqa: F403
from fuser.runtime.device_random import *  # noqa: F403
