def elementwise(state, k, j, place):
    """Add record k's part to record j's cotangent; `place` is the operand and 2**32 if it is the last."""
    s = i64(state)
    slot = min(place & 0xFFFF, 2)
    word, metas, shapes = i64(s[WORD]), i64(s[META]), i64(s[SHAPES])
    operations, cotangents, flags = i64(s[OPERATIONS]), i64(s[COTANGENTS]), u8(s[FLAGS])
    walk, templates, addresses = i64(s[WALK]), i64(s[TEMPLATES]), i64(s[ADDRESS])
    m, to = metas[k], metas[j]
    row = ROW * (word[k] & 0xFFFF)
    compute = m & 0xFF
    flat = operations[row + TEMPLATE] == RESHAPE
    partial, reads = operations[row + PARTIAL + slot], operations[row + READS + slot]
    kernel, factor = 0, 1.0
    if partial >= 0:
        kernel = i64(s[KERNELS])[2 * partial + compute - 1]
    elif not flat:
        factor = f64(s[OPERATIONS])[row + SCALE + slot]
    whole = flat or same_shape(shapes, m, to)
    plain = whole and compute == to & 0xFF
    if plain and kernel == 0 and factor == 1.0 and place >> 32 != 0:
        if cotangents[j] == 0 and flags[k] & SINK == 0:
            cotangents[j] = cotangents[k]
            flags[j] |= flags[k] & FOREIGN
            cotangents[k] = 0
            return DONE
    out = call(templates[TARGET], state, j, 0 if whole else 1, 0)
    if out == 0:
        return MEMORY
    store = s[STORE]
    n = count_of(shapes, m)
    if plain and n <= BLOCK or (plain and store):
        count = 2
        if kernel != 0:
            for bit in range(4):
                if (reads >> bit) & 1:
                    source = operand(word, k, bit)
                    other = metas[source]
                    if other & 0x1FF != compute | 0x100 or not same_shape(shapes, m, other):
                        plain = 0
                    walk[ARGUMENT + count] = addresses[source]
                    count += 1
        if plain:
            made = cotangents[k]
            if kernel != 0:
                walk[ARGUMENT + 1] = made
                made = out if store else s[SCRATCH]
                walk[ARGUMENT] = made
                if call(kernel, s[WALK] + 8 * ARGUMENT, n) != 1:
                    return FAILED
                if store:
                    return DONE
            if compute == 1:
                a, b = f64(out), f64(made)
                if store:
                    for i in range(n):
                        a[i] = b[i] * factor
                else:
                    for i in range(n):
                        a[i] += b[i] * factor
            else:
                c, d = f32(out), f32(made)
                scale = f32(factor)
                if store:
                    for i in range(n):
                        c[i] = d[i] * scale
                else:
                    for i in range(n):
                        c[i] += d[i] * scale
            return DONE
    count = 2
    if flat:
        walk[HEAD + NDIM] = 1
        walk[EXTENT] = n
        walk[STRIDE], walk[STRIDE + MAXDIM] = (to >> 9) & 0x7F, (m >> 9) & 0x7F
        walk[HEAD + POINTER], walk[HEAD + POINTER + 1] = out, cotangents[k]
        walk[HEAD + CODE], walk[HEAD + CODE + 1] = to & 0xFF, compute
    else:
        extents(s, m)
        for bit in range(-2, 4):
            if bit < 0 or (reads >> bit) & 1:
                at = addresses[j]
                which = j
                if bit == -2:
                    at = out
                elif bit == -1:
                    which = k
                    at = cotangents[k]
                else:
                    which = operand(word, k, bit)
                    at = addresses[which]
                lay(s, 0 if bit == -2 else 1 if bit == -1 else count, at, metas[which], 0, bit >= 0)
                if bit >= 0:
                    count += 1
    walk[HEAD + COUNT], walk[HEAD + COMPUTE], walk[HEAD + FUNCTION] = count, compute, kernel
    f64(s[WALK] + 8 * (HEAD + FACTOR))[0] = factor
    return DONE if call(templates[STREAM], state, store, 0, 0) == 1 else FAILED
