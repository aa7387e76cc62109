"""The ClientApp of `privopt federate`: a node answers for its part of a shared file, or for the users of its own, `data`."""

from flwr.app import Context

from privopt.federated.flower_client import Plan, client_app
from privopt.perexample.user_vectors import Users
from privopt.runs.table_users import find_users


def _find_users(context: Context, plan: Plan) -> Users:
    config = context.node_config
    data = config.get("data")
    return find_users(plan, part=int(config.get("partition-id", 0)), data=None if data is None else str(data))


client = client_app(_find_users)
