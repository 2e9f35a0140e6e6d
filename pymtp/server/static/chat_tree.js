// The turns of a chat as a tree: answers that were generated again, and edited messages, stand beside the old ones.

export class ChatTree {
  #turns = new Map(); // turn by id
  #children = new Map(); // the ids of the turns after a turn, in the order of their times; the first turns are after null

  get isEmpty() {
    return this.#turns.size === 0;
  }

  get(id) {
    return this.#turns.get(id);
  }

  /** Returns all turns, each one after the turn that it follows. */
  all() {
    const all = [];
    for (const open = [null]; open.length; ) {
      const after = this.#after(open.pop());
      all.push(...after.map((id) => this.get(id)));
      open.push(...after);
    }
    return all;
  }

  /** Adds a turn, or replaces the turn with its id. */
  add(turn) {
    const siblings = this.#after(turn.parent);
    if (!this.#turns.has(turn.id)) siblings.push(turn.id);
    this.#turns.set(turn.id, turn);
    siblings.sort((a, b) => this.get(a).at - this.get(b).at);
  }

  /** Removes a turn that has no turn after it. */
  remove(turn) {
    this.#turns.delete(turn.id);
    const siblings = this.#after(turn.parent);
    if (siblings.includes(turn.id)) siblings.splice(siblings.indexOf(turn.id), 1);
  }

  /** Returns the turns from the first one to the turn `leaf`; none for null. */
  path(leaf) {
    const path = [];
    for (let turn = this.get(leaf); turn; turn = this.get(turn.parent)) path.push(turn);
    return path.reverse();
  }

  /** Returns the turns that stand in the same place as a turn, with the turn itself. */
  siblings(turn) {
    return this.#after(turn.parent).map((id) => this.get(id));
  }

  /** Returns the id of the last turn that follows a turn; at each fork, the newest turn is followed. */
  lastAfter(id) {
    for (let next; (next = this.#after(id).at(-1)); ) id = next;
    return id;
  }

  #after(parent) {
    if (!this.#children.has(parent)) this.#children.set(parent, []);
    return this.#children.get(parent);
  }
}
