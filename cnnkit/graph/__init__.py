"""The bipartite graph of operations and blobs, what it allows, and the scheduler that runs it."""

from cnnkit.graph.analyse import Analysis, analyse, simulate
from cnnkit.graph.bigraph import Blob, Graph, GraphError, Op, Resource, resource
from cnnkit.graph.cost import estimate, evaluate, measure
from cnnkit.graph.export import chrome_trace, dot, from_json, save, to_json
from cnnkit.graph.jaxpr import Traced, from_function
from cnnkit.graph.net import Stepwise, from_net
from cnnkit.graph.schedule import Cancelled, Handle, OperationError, Scheduler, Stream
from cnnkit.graph.timeline import Event, Timeline

__all__ = [
    "Analysis",
    "Blob",
    "Cancelled",
    "Event",
    "Graph",
    "GraphError",
    "Handle",
    "Op",
    "OperationError",
    "Resource",
    "Scheduler",
    "Stepwise",
    "Stream",
    "Timeline",
    "Traced",
    "analyse",
    "chrome_trace",
    "dot",
    "estimate",
    "evaluate",
    "from_function",
    "from_json",
    "from_net",
    "measure",
    "resource",
    "save",
    "simulate",
    "to_json",
]
