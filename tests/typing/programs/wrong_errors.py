"""What a type checker must refuse of errors: names and attributes that there are not."""

from txnqueue import QueueManger, errors  # wrong: attr-defined, reportAttributeAccessIssue


def catches(work: QueueManger) -> None:
    try:
        print(work)
    except errors.TransactionUnknown as unknown:
        print(unknown.id)  # wrong: attr-defined, reportAttributeAccessIssue
    except errors.TransactionAborted as aborted:
        print(aborted.receipt.commit_seq)  # wrong: union-attr, reportOptionalMemberAccess
    except errors.LeaseLost as lost:
        print(lost.queue.upper())  # wrong: union-attr, reportOptionalMemberAccess
    except errors.TransactionExpired:  # wrong: attr-defined, reportAttributeAccessIssue
        pass


def lacks_what_is_always_there() -> Exception:
    return errors.TransactionUnknown("In doubt.")  # wrong: call-arg, reportCallIssue


def carries_what_is_not_declared() -> Exception:
    return errors.LeaseLost("Lost.", quue="orders")  # wrong: call-arg, reportCallIssue


def carries_another_type() -> Exception:
    return errors.QueueNotFound(name=None)  # wrong: arg-type, reportArgumentType
