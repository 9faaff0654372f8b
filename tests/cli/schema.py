"""Holds the schemas of `degas schema` against files and against the readers.

usage: schema.py DEGAS FOLDER FILE... --files      each FILE agrees with the schema of its format
       schema.py DEGAS FOLDER FILE... --readers N  what the schema refuses the reader refuses, and the other way round,
                                                   for changes of every N-th key of FILE; FOLDER has room for the changed
Prints what disagrees; nothing where all is well.
"""
import copy
import json
import re
import subprocess
import sys

TYPES = {'object': dict, 'array': list, 'string': str, 'boolean': bool, 'null': type(None)}


def is_type(value, name):
    if name in ('integer', 'number'):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and (name == 'number' or value == int(value))
    return isinstance(value, TYPES[name])


def wrong(schema, root, value, path='$'):
    """What is wrong with the value: the part of JSON Schema that the schemas use."""
    if '$ref' in schema:
        return wrong(root['$defs'][schema['$ref'].split('/')[-1]], root, value, path)
    unknown = set(schema) - {'type', 'const', 'enum', 'minimum', 'maximum', 'properties', 'required', 'items',
                             'additionalProperties', 'pattern', '$comment'}
    assert not unknown, '%s: a schema with %s' % (path, unknown)
    types = schema.get('type', [])
    types = types if isinstance(types, list) else [types]
    if types and not any(is_type(value, t) for t in types):
        return '%s: %r is no %s' % (path, str(value)[:60], ' or '.join(types))
    if 'const' in schema and value != schema['const'] or 'enum' in schema and value not in schema['enum'] + [None]:
        return '%s: %r is none of its words' % (path, value)
    if is_type(value, 'number') and not schema.get('minimum', value) <= value <= schema.get('maximum', value):
        return '%s: %r is out of bounds' % (path, value)
    if isinstance(value, str) and not re.search(schema.get('pattern', ''), value):
        return '%s: %r is not as it should be' % (path, value)
    if isinstance(value, dict):
        for key in schema.get('required', []):
            if key not in value:
                return '%s.%s is missing' % (path, key)
        for key, member in value.items():
            rest = schema.get('additionalProperties', True)
            if key in schema.get('properties', {}):
                found = wrong(schema['properties'][key], root, member, path + '.' + key)
            elif rest is False:
                found = '%s.%s is unknown' % (path, key)
            else:
                found = wrong(rest, root, member, path + '.' + key) if isinstance(rest, dict) else None
            if found:
                return found
    if isinstance(value, list) and 'items' in schema:
        for i, item in enumerate(value):
            found = wrong(schema['items'], root, item, '%s[%d]' % (path, i))
            if found:
                return found
    return None


def schema_of(degas, document, schemas={}):
    name = document['format']
    if name not in schemas:
        schemas[name] = json.loads(subprocess.run([degas, 'schema', name], check=True, capture_output=True).stdout)
        try:
            import jsonschema
            jsonschema.Draft202012Validator.check_schema(schemas[name])
        except ImportError:
            pass
    return schemas[name]


def places(value, path=()):
    """The path of every member of an object, of arrays only in the first item."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield path + (key,)
            yield from places(member, path + (key,))
    elif isinstance(value, list) and value:
        yield from places(value[0], path + (0,))


def at(document, path):
    for key in path:
        document = document[key]
    return document


# Where the readers know more than a schema can say: keys that others need, names that must exist, sums that must fit.
BETWEEN_KEYS = re.compile(r'(format|version|measured\.0\..*|measured_model|points\.0\..*|degrees\.\w+|offload|zero_stage|schedule|'
                          r'stages\.0\.\w+|.*\.(name|device|level)|overlap_pairs|placement|ranks|virtual)$')
# What is written for people and not read.
NOT_READ = {'peak', 'explanation', 'explain', 'any_schedule', 'error', 'source', 'expected', 'displayTimeUnit', 'distribution'}


# Of a plan: they have files of their own.
EMBEDDED = ('model', 'cluster', 'predicted')


def readers(degas, folder, path, step):
    document = json.load(open(path, encoding='utf-8'))
    root = schema_of(degas, document)
    changed_path = folder + '/changed.json'
    n = 0

    def compare(changed, what, place):
        nonlocal n
        n += 1
        with open(changed_path, 'w', encoding='utf-8') as f:
            json.dump(changed, f)
        run = subprocess.run([degas, 'show', changed_path], capture_output=True, text=True, check=False)
        found = wrong(root, root, changed)
        name = '.'.join(map(str, place))
        if run.returncode not in (0, 2, 3):
            print('%s: %s %s: status %d' % (path, what, name, run.returncode))
        if found and run.returncode == 0:
            print('%s: %s %s: the reader takes it, the schema does not: %s' % (path, what, name, found))
        if not found and run.returncode != 0 and not BETWEEN_KEYS.match(name):
            print('%s: %s %s: the schema takes it, the reader does not: %s' % (path, what, name, run.stderr.strip()))

    for i, place in enumerate(places(document)):
        if i % step != step // 2 or NOT_READ & set(place) or \
                document['format'] == 'degas-plan' and place[0] in EMBEDDED or \
                len(place) > 1 and place[0] in ('alternatives', 'traceEvents'):
            continue
        value = at(document, place)
        for what, other in (('without', None), ('null for', None), ('another type for', [[]]),
                            ('a wrong value for', 'zzz' if isinstance(value, str) else -10**15), ('an unknown key in', 1)):
            changed = copy.deepcopy(document)
            owner = at(changed, place[:-1])
            if what == 'without':
                del owner[place[-1]]
            elif what == 'an unknown key in':
                if not isinstance(value, dict):
                    continue
                value = owner[place[-1]]
                value['zzz'] = other
            else:
                owner[place[-1]] = other
            compare(changed, what, place)
    assert n > 0


def main():
    degas, folder, *rest = sys.argv[1:]
    if rest[-1] == '--files':
        for path in rest[:-1]:
            document = json.load(open(path, encoding='utf-8'))
            root = schema_of(degas, document)
            found = wrong(root, root, document)
            if found:
                print('%s: %s' % (path, found))
            try:
                import jsonschema
                error = next(jsonschema.Draft202012Validator(root).iter_errors(document), None)
                if error is not None and not found:
                    print('%s: jsonschema: %s' % (path, error.message[:200]))
            except ImportError:
                pass
    else:
        for path in rest[:-2]:
            readers(degas, folder, path, int(rest[-1]))


main()
